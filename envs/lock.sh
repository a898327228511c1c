#!/bin/sh
# Resolves requirements.in to requirements.lock with uv, for both Pythons, and keeps pins that still fit. The arguments
# name environments; without arguments all are resolved. For cpu, cuda.lock gets the further packages of PyTorch's CUDA
# build.
set -eu
cd "$(dirname "$0")"
for name in "$@"; do
    [ -f "$name/requirements.in" ] || { echo "error: no such environment: $name (cpu, gpu or lighteval)" >&2; exit 2; }
done
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool/venv"
"$tool/venv/bin/pip" install --quiet uv

resolve() { # environment, python version, output, further options
    name=$1
    version=$2
    output=$3
    shift 3
    "$tool/venv/bin/uv" pip compile "$name/requirements.in" \
        --python-version "$version" --python-platform x86_64-manylinux_2_28 --no-annotate --no-header --quiet \
        --output-file "$output" "$@"
}

lock() { # environment, further options
    name=$1
    shift
    cp "$name/requirements.lock" "$tool/3.11" 2>/dev/null || rm -f "$tool/3.11"
    resolve "$name" 3.11 "$tool/3.11" "$@"
    cp "$tool/3.11" "$tool/3.12"
    resolve "$name" 3.12 "$tool/3.12" "$@"
    cmp "$tool/3.11" "$tool/3.12" || { echo "error: the two Pythons need different pins for $name" >&2; exit 1; }
    cp "$tool/3.11" "$name/requirements.lock"
}

lock_cpu() {
    lock cpu --excludes cpu/excludes.txt --overrides cpu/overrides.txt --excludes cpu/excludes-cuda.txt
    cat cpu/requirements.lock cpu/cuda.lock > "$tool/whole" 2>/dev/null || cp cpu/requirements.lock "$tool/whole"
    resolve cpu 3.11 "$tool/whole" --excludes cpu/excludes.txt --overrides cpu/overrides.txt
    grep -vxFf cpu/requirements.lock "$tool/whole" > cpu/cuda.lock
}

lock_gpu() {
    lock gpu
}

lock_lighteval() { # same PyTorch as cpu, so cpu/cuda.lock fits too
    lock lighteval --excludes cpu/excludes.txt --excludes cpu/excludes-cuda.txt
}

for environment in ${*:-cpu gpu lighteval}; do
    "lock_$environment"
done
