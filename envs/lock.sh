#!/bin/sh
# Resolves envs/cpu/requirements.in with uv, for both Pythons, to requirements.lock, and to cuda.lock what PyTorch's CUDA
# build needs besides. Pins that still fit are kept.
set -eu
cd "$(dirname "$0")/cpu"
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool/venv"
"$tool/venv/bin/pip" install --quiet uv

resolve() { # python version, output, further options
    version=$1
    output=$2
    shift 2
    "$tool/venv/bin/uv" pip compile requirements.in --excludes excludes.txt --overrides overrides.txt \
        --python-version "$version" --python-platform x86_64-manylinux_2_28 --no-annotate --no-header --quiet \
        --output-file "$output" "$@"
}

for version in 3.11 3.12; do
    cp requirements.lock "$tool/$version" 2>/dev/null || true
    resolve "$version" "$tool/$version" --excludes excludes-cuda.txt
done
cmp "$tool/3.11" "$tool/3.12" || { echo "error: the two Pythons need different pins" >&2; exit 1; }
cp "$tool/3.11" requirements.lock
cat requirements.lock cuda.lock > "$tool/whole" 2>/dev/null || cp requirements.lock "$tool/whole"
resolve 3.11 "$tool/whole"
grep -vxFf requirements.lock "$tool/whole" > cuda.lock
