#!/usr/bin/env bash
# Installs what this checkout needs: Debian packages that are missing, then .venv. Usage: setup.sh LEVEL
#   base    what the exporter and the demo need     dev    also what tests and checks need
#   rdma    dev, and what virtual machines with RDMA, or with another kernel or architecture, need
#   image   only what building an image without a container engine needs
#   root    only what making a bare root needs
set -euo pipefail
cd "$(dirname "$0")/.."

case $PWD in
    *[\$\{\}]*)
        echo "setup: Python's packaging cannot install into a path with \$, { or }; move the checkout: $PWD" >&2
        exit 1
        ;;
esac

level=${1:?usage: setup.sh base|dev|rdma|image|root}
missing=()
PROGRESS_SECONDS=5

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
require_python() { find_python >/dev/null || too_old "$(python3 --version 2>&1)"; }
# The same where there is no Python yet: of the one that would be installed.
require_python_package() {
    local version
    version=$(apt-cache show --no-all-versions python3 2>/dev/null | sed -n 's/^Version: *//p' | head -n 1)
    [ -z "$version" ] || dpkg --compare-versions "$version" ge 3.11 || too_old "Python $version"
}
too_old() {
    echo "setup: Python 3.11 or newer is needed and this is $1. Debian 12, Ubuntu 24.04 and newer" >&2
    echo "    have it, and libbpf.so.1; on an older release run the container image (make image)." >&2
    exit 1
}
can_make_venv() { "$(find_python)" -c 'import ensurepip, venv'; }

if [ "$level" = image ] || [ "$level" = root ]; then
    [ "$level" = root ] || need buildah has buildah
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
    need prometheus-alertmanager has amtool
    need prometheus-node-exporter has prometheus-node-exporter
    need bpftrace has bpftrace
    need openssl has openssl
    need nghttp2-client has h2load
    need nghttp2-server has nghttpd
    need iproute2 has ip
    need dwz has dwz
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
    need qemu-system-arm has qemu-system-aarch64
    need gcc-aarch64-linux-gnu has aarch64-linux-gnu-gcc
    need busybox-static has busybox
    need kmod has depmod
    need iproute2 has rdma
    need iptables has iptables-legacy
    need ibverbs-utils has ibv_rc_pingpong
    need perftest has ib_write_bw
fi

# progress WHAT COMMAND...: runs it, with a line every few seconds that has the time and the last line it wrote. All that
# it wrote is shown only when it fails.
progress() {
    local what=$1 start=$SECONDS status=0
    shift
    log=$(mktemp)
    echo "setup: $what"
    while sleep $PROGRESS_SECONDS >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        printf 'setup:   %d s %.90s\n' $((SECONDS - start)) "$(grep -v '^ *WARNING' "$log" | tail -n 1 | tr -d '\r')"
    done &
    reporter=$!
    "$@" >"$log" 2>&1 </dev/null || status=$?
    stop_reporting
    [ "$status" -ne 0 ] || echo "setup:   done in $((SECONDS - start)) s"
    [ "$status" -eq 0 ] || tail -20 "$log" >&2
    rm "$log"
    return "$status"
}
stop_reporting() {
    [ -z "${reporter:-}" ] || kill "$reporter" 2>/dev/null || true
    reporter=""
}
trap 'stop_reporting; rm -f "${log:-}"' EXIT

install_missing() {
    local sudo="" server all command=(apt-get install --yes --no-install-recommends "${missing[@]}")
    if ! command -v apt-get >/dev/null; then
        echo "setup: this is neither Debian nor Ubuntu; install what these Debian packages hold, then try again:" >&2
        echo "    ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            sudo -n true 2>/dev/null || sudo -v # a password is typed now, not while output goes to a log
            sudo="sudo"
        else
            echo "setup: packages are missing and installing them needs root. Run this, then try again:" >&2
            echo "    sudo apt-get update && sudo ${command[*]}" >&2
            exit 1
        fi
    fi
    progress "reading the lists of packages" $sudo apt-get update -q ||
        echo "setup: apt-get update failed; going on with the lists that are there" >&2
    has python3 >/dev/null || [ "$level" = image ] || [ "$level" = root ] || require_python_package
    all=$("${command[@]}" -qq --simulate 2>/dev/null | grep -c '^Inst') || true
    # A machine that has just started may be updating itself: then its lock is waited for.
    if ! progress "installing $all packages: ${missing[*]} and what they need" $sudo env DEBIAN_FRONTEND=noninteractive \
        "${command[@]}" -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300; then
        echo "setup: this did not work; mend it and try again: ${command[*]}" >&2
        exit 1
    fi
    # Debian starts a server that is installed; tests and measurements start their own.
    for server in prometheus prometheus-alertmanager prometheus-node-exporter; do
        if [[ " ${missing[*]} " == *" $server "* ]] && [ -d /run/systemd/system ]; then
            $sudo systemctl disable --now --quiet "$server"
        fi
    done
}
if [ "$level" != image ] && [ "$level" != root ] && has python3 >/dev/null; then
    require_python # before anything is installed for nothing
fi
[ ${#missing[@]} -eq 0 ] || install_missing
[ "$level" != image ] && [ "$level" != root ] || exit 0

require_python
python=$(find_python)
.venv/bin/python -m pip --version >/dev/null 2>&1 || progress "making .venv" "$python" -m venv --clear .venv
extras=""
case $level in dev | rdma) extras="[dev,otlp,otlp-grpc]" ;; esac
if ! progress "installing Python packages into .venv and compiling the BPF programs" \
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off --editable ".$extras"; then
    echo "setup: pip could not install what pyproject.toml names; what it printed last is above" >&2
    exit 1
fi
touch .venv/.base ".venv/.$level"
[ "$level" != rdma ] || touch .venv/.dev
