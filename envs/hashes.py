"""Print a lock with the SHA-256 of the files that it may be installed from: wheels, or a source if there are none.

The arguments are files that `uv pip compile --format pylock.toml` wrote, with the same pins for several Pythons.
Standard error gets the size of the download.
"""

import sys
import tomllib
from pathlib import Path

hashes: dict[str, set[str]] = {}
for file in sys.argv[1:]:
    size = 0
    for package in tomllib.loads(Path(file).read_text(encoding="utf-8"))["packages"]:
        files = package.get("wheels") or [package["sdist"]]
        hashes.setdefault(f"{package['name']}=={package['version']}", set()).update(
            f["hashes"]["sha256"] for f in files
        )
        size += max(f["size"] for f in files)
    print(f"{Path(file).name}: a download of {size / 1e9:.1f} GB", file=sys.stderr)
for pin in sorted(hashes, key=lambda pin: pin.split("==")):
    print(pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[pin])))
