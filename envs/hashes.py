"""Print a lock with the SHA-256 of the files that it may be installed from: wheels, or a source if there are none.

The arguments are files that `uv pip compile --format pylock.toml` wrote, with the same pins for several Pythons.
Standard error gets the size of the download. A package without a wheel is an error unless it is pure Python: a node may
have no compiler for it.
"""

import sys
import tomllib
from pathlib import Path

PURE = {"antlr4-python3-runtime", "connection-pool", "langdetect", "rouge-score", "sqlitedict", "word2number"}
"""Packages in pure Python that have no wheel."""

hashes: dict[str, set[str]] = {}
for file in sys.argv[1:]:
    size = 0
    for package in tomllib.loads(Path(file).read_text(encoding="utf-8"))["packages"]:
        if not package.get("wheels") and package["name"] not in PURE:
            sys.exit(f"error: {package['name']} {package['version']} has no wheel for this platform")
        files = package.get("wheels") or [package["sdist"]]
        hashes.setdefault(f"{package['name']}=={package['version']}", set()).update(
            f["hashes"]["sha256"] for f in files
        )
        size += max(f["size"] for f in files)
    print(f"{Path(file).name}: a download of {size / 1e9:.1f} GB", file=sys.stderr)
for pin in sorted(hashes, key=lambda pin: pin.split("==")):
    print(pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[pin])))
