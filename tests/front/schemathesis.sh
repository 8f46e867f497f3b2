#!/usr/bin/env bash
# Schemathesis against the server's own /openapi.json, in an environment of its own (it is big).
# Usage: tests/front/schemathesis.sh [EXAMPLES]   VENV keeps the environment between runs.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
venv=${VENV:-$work/venv}
server=
trap 'test -z "$server" || kill "$server"; rm -rf "$work"' EXIT
test -x "$venv/bin/schemathesis" || {
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'schemathesis>=4'
}

"${PYTHON:-python3}" -m examples.server --port 0 --mock mock-fast >"$work/said" &
server=$!
until origin=$(grep -om1 'http://127.0.0.1:[0-9]*' "$work/said"); do
    kill -0 "$server"
done

examples=${1:-50}
export SCHEMATHESIS_HOOKS=schemathesis_hooks PYTHONPATH=$PWD/tests/front
cd "$work"  # it leaves files where it runs
"$venv/bin/schemathesis" run "$origin/openapi.json" --checks all --max-examples "$examples" --seed 1
