#!/usr/bin/env bash
# Installs what this checkout needs: Debian packages that are missing, then .venv. Usage: setup.sh base|dev|rdma|image
#   base    what the exporter and the demo need     dev    also what tests and checks need
#   rdma    dev, and what two virtual machines with RDMA need
#   image   only what building an image without a container engine needs
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:?usage: setup.sh base|dev|rdma|image}
missing=()

# need PACKAGE COMMAND...: the package is missing unless the command succeeds.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
has() { command -v "$1"; }
any_headers() { test -e "/lib/modules/$(uname -r)/build" || compgen -G "/usr/src/linux-headers-*-common"; }

# Prints the first Python that is recent enough, or fails.
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}
require_python() {
    find_python >/dev/null && return
    echo "setup: Python 3.11 or newer is needed and this is $(python3 --version 2>&1). Debian 12, Ubuntu 24.04 and newer" >&2
    echo "    have it, and libbpf.so.1; on an older release run the container image (make image)." >&2
    exit 1
}
can_make_venv() { "$(find_python)" -c 'import ensurepip, venv'; }

if [ "$level" = image ]; then
    need buildah has buildah
    need debootstrap has debootstrap
else
    need clang has clang
    need llvm has llvm-strip
    need libbpf-dev test -e /usr/include/bpf/bpf_helpers.h
    need gcc has gcc
    need libc6-dev test -e /usr/include/stdio.h
    need make has make
    need python3-venv can_make_venv
fi
if [ "$level" = dev ] || [ "$level" = rdma ]; then
    need prometheus has promtool
    need prometheus-node-exporter has prometheus-node-exporter
    need bpftrace has bpftrace
    need openssl has openssl
    need openipmi has ipmi_sim
    need freeipmi-tools test -x /usr/sbin/ipmi-sensors
    need chromium has chromium
    need libibverbs-dev test -e /usr/include/infiniband/verbs.h
    need ibverbs-providers test -d /etc/libibverbs.d
    need python3-bpfcc /usr/bin/python3 -I -c "from bcc import BPF"
    ! grep -qs '^ID=debian' /etc/os-release || need "linux-headers-cloud-$(dpkg --print-architecture)" any_headers
fi
if [ "$level" = rdma ]; then
    need qemu-system-x86 has qemu-system-x86_64
    need busybox-static has busybox
    need kmod has modprobe
    need iproute2 has rdma
    need iptables has iptables-legacy
    need ibverbs-utils has ibv_rc_pingpong
    need perftest has ib_write_bw
    need curl has curl
fi

install_missing() {
    local sudo="" log server command=(apt-get install --yes --no-install-recommends "${missing[@]}")
    if ! command -v apt-get >/dev/null; then
        echo "setup: this is neither Debian nor Ubuntu; install what these Debian packages hold, then try again:" >&2
        echo "    ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            sudo="sudo"
        else
            echo "setup: packages are missing and installing them needs root. Run this, then try again:" >&2
            echo "    sudo apt-get update && sudo ${command[*]}" >&2
            exit 1
        fi
    fi
    echo "setup: installing ${missing[*]}"
    $sudo apt-get update -qq || echo "setup: apt-get update failed; going on with the lists that are there" >&2
    log=$(mktemp)
    if ! $sudo env DEBIAN_FRONTEND=noninteractive "${command[@]}" -qq -o Dpkg::Use-Pty=0 >"$log" 2>&1; then
        tail -20 "$log" >&2
        echo "setup: this did not work; mend it and try again: ${command[*]}" >&2
        exit 1
    fi
    rm "$log"
    # Debian starts a server that is installed; tests and measurements start their own.
    for server in prometheus prometheus-node-exporter; do
        if [[ " ${missing[*]} " == *" $server "* ]] && [ -d /run/systemd/system ]; then
            $sudo systemctl disable --now --quiet "$server"
        fi
    done
}
if [ "$level" != image ] && has python3 >/dev/null; then
    require_python # before anything is installed for nothing
fi
[ ${#missing[@]} -eq 0 ] || install_missing
[ "$level" != image ] || exit 0

require_python
python=$(find_python)
.venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
extras=""
[ "$level" != dev ] || extras="[dev,otlp,otlp-grpc]"
[ "$level" != rdma ] || extras="[dev,otlp,otlp-grpc,rdma]"
.venv/bin/python -m pip install -qq --disable-pip-version-check --editable ".$extras"
touch .venv/.base ".venv/.$level"
