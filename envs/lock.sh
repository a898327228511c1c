#!/bin/sh
# Resolves envs/cpu/requirements.in to requirements.lock with uv, for both Pythons; pins that still fit are kept.
set -eu
cd "$(dirname "$0")/cpu"
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool/venv"
"$tool/venv/bin/pip" install --quiet uv
for version in 3.11 3.12; do
    cp requirements.lock "$tool/$version" 2>/dev/null || true
    "$tool/venv/bin/uv" pip compile requirements.in --excludes excludes.txt --overrides overrides.txt \
        --python-version "$version" --python-platform x86_64-manylinux_2_28 --no-annotate --no-header --quiet \
        --output-file "$tool/$version"
done
cmp "$tool/3.11" "$tool/3.12" || { echo "error: the two Pythons need different pins" >&2; exit 1; }
cp "$tool/3.11" requirements.lock
