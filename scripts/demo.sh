#!/usr/bin/env bash
# The main job, from a fresh clone: installs what is missing, then sweeps four cells on two ranks of this machine.
# Further arguments go to detsweep, e.g. `scripts/demo.sh trials=3`.
set -eu
# shellcheck source=scripts/setup.sh
. "$(dirname "$0")/setup.sh"
prepare ""
cd "$root"
exec "$python" -m detsweep -m dtype=bf16,fp16 experts=1,4 "$@"
