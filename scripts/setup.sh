# shellcheck shell=bash
# Sourced by the other scripts: `prepare EXTRA` leaves $python, an interpreter that has detsweep[EXTRA] installed.
#
# An active environment that has torch is used as it is. Otherwise .venv is made, and where no GPU is seen the CPU
# build of torch is installed first: left to itself pip would bring several gigabytes of CUDA.

torch_cpu=${TORCH_VERSION:-2.13.0}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    echo "detsweep: $*" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

has_torch() {
    # An older one would be upgraded by pip, and to the build with CUDA.
    "$1" -c '
import sys
from importlib.metadata import version
sys.exit(tuple(map(int, version("torch").split(".")[:2])) < (2, 6))' 2>/dev/null
}

gpu() {
    if [ -e /dev/kfd ]; then
        echo amd
    elif [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; then
        echo nvidia
    fi
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10 python; do
        if new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "needs Python 3.10 or newer; none found on PATH (set PYTHON=/path/to/python)"
}

choose_python() {
    local active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
    if [ -n "$active" ] && new_enough "$active/bin/python" && has_torch "$active/bin/python"; then
        python=$active/bin/python
        return
    fi
    python=$root/.venv/bin/python
    if [ ! -x "$python" ]; then
        local base
        base=$(find_python) || exit 1
        "$base" -m venv "$root/.venv" || fail "$base cannot make a virtual environment (on Debian: python3-venv)"
    fi
}

install_torch() {
    has_torch "$python" && return
    case $(uname -s)-$(gpu) in
        Linux-amd) fail "an AMD GPU and no torch: install the ROCm build of torch first, then run this again" ;;
        Linux-)
            echo "detsweep: no GPU seen, installing the CPU build of torch $torch_cpu"
            "$python" -m pip install --quiet "torch==$torch_cpu+cpu" 2>/dev/null ||
                "$python" -m pip install --quiet --retries 1 "torch==$torch_cpu+cpu" \
                    --extra-index-url https://download.pytorch.org/whl/cpu ||
                fail "no CPU build of torch $torch_cpu for this Python; install one, then run this again"
            ;;
        *) ;; # macOS has no other build, and with an NVIDIA GPU the default one is right
    esac
}

prepare() {
    local extra=${1:+[$1]} stamp state
    choose_python
    # A note in the environment saves the seconds that pip takes to find that nothing is missing.
    stamp=$(dirname "$(dirname "$python")")/.detsweep-installed$extra
    state="$root $(cksum <"$root/pyproject.toml")"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$state" ]; then
        install_torch
        "$python" -m pip install --quiet --editable "$root$extra" || fail "installation failed"
        echo "$state" >"$stamp"
    fi
}
