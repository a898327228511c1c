#!/bin/sh
# Resolves requirements.in to requirements.lock with uv, for both Pythons, and keeps pins that still fit. The arguments
# name environments; without arguments all are resolved. For cpu, cuda.lock gets the further packages of PyTorch's CUDA
# build. cpu, lighteval and trl have no hashes, since an index may offer one of two builds of PyTorch; the others have.
set -eu
cd "$(dirname "$0")"
all='cpu gpu gpu-cuda12 lighteval trl vllm-of-gpu'
for name in "$@"; do
    case " $all " in
        *" $name "*) ;;
        *) echo "error: no such environment: $name (${all})" >&2; exit 2 ;;
    esac
done
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool/venv"
"$tool/venv/bin/pip" install --quiet uv

compile() { # requirements, python version, output, further options
    requirements=$1
    version=$2
    output=$3
    shift 3
    "$tool/venv/bin/uv" pip compile "$requirements" \
        --python-version "$version" --python-platform x86_64-manylinux_2_31 --no-annotate --no-header --quiet \
        --output-file "$output" "$@"
}

resolve() { # environment, requirements, further options
    name=$1
    requirements=$2
    shift 2
    cp "$name/requirements.lock" "$tool/3.11" 2>/dev/null || rm -f "$tool/3.11"
    compile "$requirements" 3.11 "$tool/3.11" "$@"
    cp "$tool/3.11" "$tool/3.12"
    compile "$requirements" 3.12 "$tool/3.12" "$@"
    cmp "$tool/3.11" "$tool/3.12" || { echo "error: the two Pythons need different pins for $name" >&2; exit 1; }
}

lock() { # environment, requirements, further options
    resolve "$@"
    cp "$tool/3.11" "$name/requirements.lock"
}

lock_with_hashes() { # environment, requirements, further options
    resolve "$@"
    compile "$tool/3.11" 3.11 "$tool/pylock.$name-311.toml" --no-deps --format pylock.toml
    compile "$tool/3.12" 3.12 "$tool/pylock.$name-312.toml" --no-deps --format pylock.toml
    python3 hashes.py "$tool/pylock.$name-311.toml" "$tool/pylock.$name-312.toml" > "$tool/hashed"
    cp "$tool/hashed" "$name/requirements.lock"
}

lock_cpu() {
    lock cpu cpu/requirements.in --excludes cpu/excludes.txt --overrides cpu/overrides.txt --excludes cpu/excludes-cuda.txt
    cat cpu/requirements.lock cpu/cuda.lock > "$tool/whole" 2>/dev/null || cp cpu/requirements.lock "$tool/whole"
    compile cpu/requirements.in 3.11 "$tool/whole" --excludes cpu/excludes.txt --overrides cpu/overrides.txt
    grep -vxFf cpu/requirements.lock "$tool/whole" > cpu/cuda.lock
}

for environment in ${*:-$all}; do
    case $environment in
        cpu) lock_cpu ;;
        gpu) lock_with_hashes gpu gpu/requirements.in ;;
        gpu-cuda12) lock_with_hashes gpu-cuda12 gpu/requirements.in --overrides gpu-cuda12/overrides.txt ;;
        # Same PyTorch as cpu, so cpu/cuda.lock fits too.
        lighteval | trl)
            lock "$environment" "$environment/requirements.in" --excludes cpu/excludes.txt \
                --overrides cpu/overrides.txt --excludes cpu/excludes-cuda.txt ;;
        vllm-of-gpu)
            lock_with_hashes vllm-of-gpu vllm-of-gpu/requirements.in --excludes cpu/excludes.txt \
                --overrides vllm-of-gpu/overrides.txt ;;
    esac
done
