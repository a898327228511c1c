"""`python -m redraft` runs the command `redraft`."""

from redraft.cli.app import main

if __name__ == "__main__":
    main()
