#!/bin/sh
# Prints the name of the environment that `make` uses: cpu, gpu (CUDA 13) or gpu-cuda12. $1 is ENV of the Makefile (cpu or
# gpu), $2 is CUDA (12, 13 or empty), $3 is the installed environment, if any. For gpu without CUDA that is the
# installed one, else what NVIDIA's driver supports.
set -eu
env=$1
cuda=$2
installed=$3
fail() {
    echo "error: $*" >&2
    exit 2
}
case $env$cuda in
    cpu) name=cpu ;;
    gpu) name= ;;
    gpu12) name=gpu-cuda12 ;;
    gpu13) name=gpu ;;
    cpu12 | cpu13) fail "CUDA=$cuda, but ENV=cpu; CUDA chooses between the environments of ENV=gpu" ;;
    *) fail "ENV=$env${cuda:+ CUDA=$cuda}; allowed: ENV=cpu, ENV=gpu, ENV=gpu CUDA=12, ENV=gpu CUDA=13" ;;
esac
case $name,$installed in
    *, | cpu,cpu | gpu,gpu | gpu-cuda12,gpu-cuda12) ;;
    ,gpu*) name=$installed ;;
    *) fail "ENV=$env${cuda:+ CUDA=$cuda}, but .venv holds the environment $installed; \`make clean\` removes it" ;;
esac
if [ -z "$name" ]; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    # Oldest drivers by NVIDIA's guide to CUDA compatibility (minor-version compatibility).
    case ${driver%%.*} in
        '' | *[!0-9]*)
            fail "no NVIDIA driver was found here (nvidia-smi); CUDA=13 chooses the environment for drivers of version" \
                "580 and newer, CUDA=12 the one for drivers of version 525 and newer" ;;
    esac
    [ "${driver%%.*}" -ge 525 ] || fail "NVIDIA's driver $driver is too old: CUDA 12 needs 525 or newer, CUDA 13 needs 580"
    name=gpu-cuda12
    [ "${driver%%.*}" -lt 580 ] || name=gpu
    echo "NVIDIA's driver is $driver, so the environment is $name" >&2
fi
echo "$name"
