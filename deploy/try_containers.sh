#!/usr/bin/env bash
# Without Docker: runs the steps of the Dockerfile and the command of each of our own containers
# in a clean folder, a new virtual environment and an empty environment, and asks each for an
# answer. Takes minutes and downloads what the images would. Ports 8000-8002 and 8080 must be free.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v python3.11 || command -v python3)
folder=$(mktemp -d)
pids=()
finish() {
    kill "${pids[@]}" 2>/dev/null || true
    wait || true
    rm -rf "$folder"
}
trap finish EXIT

become() { # CMD...: in place of this (sub)shell, with the environment of the server's image
    cd "$folder/canopy"
    exec env -i PATH="$folder/canopy/.venv/bin:/usr/bin:/bin" PYTHONDONTWRITEBYTECODE=1 \
        CANOPY_HOME="$folder/models" NUMBA_CACHE_DIR="$folder/models/numba" "$@"
}
wait_for() { # SECONDS CMD...
    local end=$((SECONDS + $1))
    until ("${@:2}") >/dev/null 2>&1; do
        ((SECONDS < end)) || { echo "in vain: ${*:2}" >&2; exit 1; }
        sleep 1
    done
}

mkdir -p "$folder/canopy" "$folder/models"
git -C "$source" archive HEAD | tar -x -C "$folder/canopy"
cd "$folder/canopy"

echo "== dependencies and server"
"$python" -m venv .venv
.venv/bin/pip install --quiet "pip>=24.1" "setuptools>=77"
.venv/bin/python deploy/pins.py neural gateway plots >requirements.txt
.venv/bin/pip install --quiet -r requirements.txt
.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .

echo "== canopy serve"
become canopy serve --config deploy/container.toml &
pids+=($!)
wait_for 300 become canopy health --url 127.0.0.1:8001
(become canopy generate "Name three rivers." --max-tokens 24 --temperature 0)

echo "== gateway"
env -i PATH="$folder/canopy/.venv/bin:/usr/bin:/bin" PYTHONPATH="$folder/canopy/client" \
    CANOPY_GATEWAY_API_KEY= python -m canopy_gateway --host 0.0.0.0 --server 127.0.0.1:8001 &
pids+=($!)
wait_for 60 python3 -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=20)"
python3 - <<'REQUEST'
import json, urllib.request
body = {"model": "canopy", "max_tokens": 16, "temperature": 0,
        "messages": [{"role": "user", "content": "Name three rivers."}]}
request = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions",
    json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"])
REQUEST

echo "== perf"
(become python -m bench perf_analyzer --server 127.0.0.1:8001 --quick)

echo "every command answered"
