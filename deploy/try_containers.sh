#!/usr/bin/env bash
# Builds the images of the Dockerfile and runs their commands without a container engine: buildah
# works in a chroot, over a Debian of its own.
#
#   deploy/try_containers.sh [--store FOLDER] [gateway|server|server-gpu|perf ...]
#
# Without a target: all of them, in a quarter of an hour. Wants root, 20 GB of disk, the packages
# buildah and debootstrap, and free ports 8000-8002 and 8080. A store that is named is kept, and
# what was built in it is not built again. Inside, the apt sources and the pip configuration of this
# machine are used. Exit status 77: this machine cannot do it.
#
# What it leaves untested: a container's cgroup limits, seccomp, read-only root and networks.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
store=$folder/store
if [[ ${1:-} == --store ]]; then
    store=$2
    shift 2
fi
targets=("$@")
((${#targets[@]})) || targets=(gateway server server-gpu perf)
pids=()

cannot() {
    echo "$1" >&2
    exit 77
}
in_store() { buildah --root "$store/images" --runroot "$store/run" "$@"; }
stop() { # PID: what runs in a container below it; buildah itself breaks down when it is told
    case $(readlink "/proc/$1/exe") in
        */bash | */buildah) for child in $(cat "/proc/$1/task/"*/children); do stop "$child"; done ;;
        *) kill "$1" ;;
    esac
}
finish() {
    for pid in "${pids[@]}"; do stop "$pid" 2>/dev/null || true; done
    wait || true
    for target in "${targets[@]}"; do in_store rm "try-$target" >/dev/null 2>&1 || true; done
    [[ $store != "$folder"/* ]] || in_store rmi --all --force >/dev/null 2>&1 || true
    rm -rf "$folder"
}

((EUID == 0)) || cannot "run this as root"
for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || cannot "install first: apt-get install buildah debootstrap"
done
for port in 8000 8001 8002 8080; do
    ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || cannot "port $port is in use"
done
trap finish EXIT
for target in "${targets[@]}"; do in_store rm "try-$target" >/dev/null 2>&1 || true; done
mkdir -p "$store" "$folder/pip" "$folder/models"
chown 10001 "$folder/models"

# The pip configuration of this machine as a file, and mounts of what it names. A bundle of
# certificates gets a folder of its own: mounted over a system folder, it stands in the way of the
# package ca-certificates.
mapfile -t mounts < <(
    python3 -m pip config list | python3 "$source/deploy/pip_mounts.py" "$folder/pip"
)
for file in /etc/resolv.conf /etc/hosts; do mounts+=("$file:$file:ro"); done
volumes=()
for mount in "${mounts[@]}"; do volumes+=(--volume "$mount"); done

base=localhost/debian:bookworm-slim
if ! in_store inspect --type image "$base" >/dev/null 2>&1; then
    echo "== base"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
    debootstrap --variant=minbase bookworm "$folder/root" "$mirror" >"$folder/debootstrap.log" 2>&1 || {
        tail -n 5 "$folder/debootstrap.log" >&2
        cannot "there is no Debian to build upon"
    }
    rm -f "$folder/root/etc/apt/sources.list"
    for part in sources.list sources.list.d apt.conf.d trusted.gpg.d keyrings; do
        [[ ! -e /etc/apt/$part ]] || cp -a "/etc/apt/$part" "$folder/root/etc/apt/"
    done
    cp -a /usr/share/keyrings "$folder/root/usr/share/"
    container=$(in_store from scratch)
    in_store copy --quiet "$container" "$folder/root" / >/dev/null
    rm -rf "$folder/root"
    in_store run --isolation chroot --network host "$container" -- true ||
        cannot "buildah cannot run a command here"
    in_store commit --quiet --rm "$container" "$base" >/dev/null
fi

build() { # TARGET
    echo "== building $1"
    in_store bud --quiet --layers --isolation chroot --network host "${volumes[@]}" \
        --build-arg BASE_IMAGE="$base" --build-arg GATEWAY_BASE_IMAGE="$base" \
        --target "$1" --tag "canopy-$1" "$source" >"$folder/build.log" 2>&1 || {
        tail -n 40 "$folder/build.log" >&2
        exit 1
    }
}
run_in() { # TARGET CMD...: in the target's container, as the image's user, with its environment
    in_store run --isolation chroot --network host "${volumes[@]}" \
        --volume "$folder/models:/models" "try-$1" -- "${@:2}"
}
start_in() { # TARGET CMD...: in the background
    run_in "$@" &
    pids+=($!)
}
wait_for() { # SECONDS CMD...
    local end=$((SECONDS + $1))
    until "${@:2}" >"$folder/last" 2>&1; do
        ((SECONDS < end)) || {
            cat "$folder/last" >&2
            echo "in vain: ${*:2}" >&2
            exit 1
        }
        sleep 2
    done
}
wants() { [[ " ${targets[*]} " == *" $1 "* ]]; }

for target in "${targets[@]}"; do
    build "$target"
    in_store from --pull-never --name "try-$target" "localhost/canopy-$target" >/dev/null
done

if wants server-gpu; then
    echo "== server-gpu: what a launcher of a GPU kernel is built with"
    run_in server-gpu sh -c 'echo "#include <Python.h>" >/tmp/launcher.c &&
        cc -shared -fPIC -I "$(python -c "import sysconfig; print(sysconfig.get_path(\"include\"))")" \
            -o /tmp/launcher.so /tmp/launcher.c && canopy --help >/dev/null'
fi
serving=$(wants server && echo server || echo perf) # the perf image holds a server, too
if wants server || wants perf; then
    echo "== canopy serve"
    start_in "$serving" canopy serve --config deploy/container.toml
    wait_for 1200 run_in "$serving" canopy health --ready --url 127.0.0.1:8001
fi
if wants server; then
    run_in server canopy generate "Name three rivers." --max-tokens 24 --temperature 0
fi
if wants gateway; then
    echo "== gateway"
    start_in gateway python -m canopy_gateway --host 0.0.0.0 --server 127.0.0.1:8001
    wait_for 300 run_in gateway python -c 'import urllib.request as r, urllib.error as e
try: r.build_opener(r.ProxyHandler({})).open("http://127.0.0.1:8080/health", timeout=20)
except e.HTTPError as error: assert error.code == 503, error'
fi
if wants gateway && wants server; then
    run_in gateway python -c 'import json, urllib.request as r
body = {"model": "canopy", "max_tokens": 16, "temperature": 0,
        "messages": [{"role": "user", "content": "Name three rivers."}]}
request = r.Request("http://127.0.0.1:8080/v1/chat/completions", json.dumps(body).encode(),
                    {"Content-Type": "application/json"})
answer = json.load(r.build_opener(r.ProxyHandler({})).open(request, timeout=60))
print(answer["choices"][0]["message"]["content"])'
fi
if wants perf; then
    echo "== perf"
    run_in perf python -m bench perf_analyzer --server 127.0.0.1:8001 --quick
fi
echo "built and answered: ${targets[*]}"
