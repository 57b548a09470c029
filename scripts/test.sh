#!/usr/bin/env bash
# Lint, types and tests, from a fresh clone: installs what is missing. Further arguments go to pytest.
set -eu
# shellcheck source=scripts/setup.sh
. "$(dirname "$0")/setup.sh"
prepare test
cd "$root"
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
# Much of a test's time is spent waiting, for a launch or for the cluster; two at a time is what two cores bear.
exec "$python" -m pytest -n "${TEST_PROCESSES:-2}" --dist loadfile --no-loadscope-reorder "$@"
