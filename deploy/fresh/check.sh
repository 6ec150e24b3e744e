#!/usr/bin/env bash
# Runs the README's commands as on a bare machine: in a root with nothing but git, make and ca-certificates, made by
# debootstrap. Usage, as root: check.sh [--release bookworm] [--only demo,unit] [--keep]
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
HOME=${HOME:-/root}

# Each is a function below, in this order: what `demo` has installed the later ones find.
CASES=(user demo again second offline tracefs refused old unit test)
declare -A MEANS=(
    [user]="a user without root, nothing installed: make demo and make test are refused with what to do"
    [demo]="make demo, nothing installed: launches, memory, GPU, NCCL and costs"
    [again]="make demo twice at once: nothing is installed again, and the second takes another port"
    [second]="make demo in a second clone, its path with spaces, and no variable but PATH"
    [offline]="make demo without a network, once set up"
    [tracefs]="doctor names a tracefs that is not mounted, with the command that mounts it"
    [refused]="a user without root, all installed: make demo is refused, the exporter names what it lacks"
    [old]="make demo where Python is too old: refused before anything is installed"
    [unit]="make test-unit"
    [test]="make test"
)
OLD_RELEASE=bullseye
CLONE=/srv/accel-exporter SECOND="/srv/a second clone/accel exporter" THEIRS=/home/visitor/accel-exporter
PATIENCE=60 # seconds without a line are too many
FIRST_LINE=60 # seconds from nothing to the demo's first line, where packages are cached
NEEDS_ROOT='^demo: attaching probes needs root: run `sudo make demo`$'

. deploy/fresh/root.sh

release=bookworm only=("${CASES[@]}") keep=""
while [ $# -gt 0 ]; do
    case $1 in
    --release) release=${2:?--release needs a name} && shift 2 ;;
    --only) IFS=, read -r -a only <<<"${2:?--only needs names: ${CASES[*]}}" && shift 2 ;;
    --keep) keep=1 && shift ;;
    *) echo "fresh-check: unknown argument $1; there are --release, --only and --keep" >&2 && exit 2 ;;
    esac
done
for name in "${only[@]}"; do
    [ -n "${MEANS[$name]:-}" ] || { echo "fresh-check: no case is called $name; there are ${CASES[*]}" >&2 && exit 2; }
done
if [ "$(id -u)" -ne 0 ]; then
    echo "fresh-check: making a root needs root: run \`sudo make fresh-check\`" >&2
    exit 1
fi

# not_checked WHY: where the machine does not allow the check, that is no failure of what is checked.
not_checked() {
    printf '!!! BARE MACHINE NOT CHECKED: %s\n' "$1" >&2
    [ -z "${REQUIRE_FRESH:-}" ]
    exit
}
unshare --mount --propagation private mount -t tmpfs tmpfs /mnt 2>/dev/null || not_checked "nothing can be mounted here"

mkdir -p "$root_cache"
fresh_work=$(mktemp -d "$root_cache/fresh.XXXXXX")
fresh_pip=${PIP_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pip}
mkdir -p "$fresh_pip"
finish() {
    cp -ln "$fresh_work"/archives/*.deb "$root_cache/archives/" 2>/dev/null
    if [ -n "$keep" ]; then
        echo "fresh-check: kept $fresh_work"
    else
        rm -rf --one-file-system "$fresh_work"
    fi
}
trap finish EXIT

# watched FOLDER COMMAND...: runs it inside, shows each line with the time, and keeps all in $fresh_work/output. Sets
# `silence`, the longest time between two lines, and `first`, when the demo's first line came, in µs.
watched() {
    local line now last start=${EPOCHREALTIME//[.,]/}
    last=$start silence=0 first=0
    while IFS= read -r line; do
        now=${EPOCHREALTIME//[.,]/}
        printf '%s\n' "$line" >&3
        printf '%5d.%d s  %s\n' $(((now - start) / 1000000)) $(((now - start) / 100000 % 10)) "${line:0:150}"
        [ $((now - last)) -le "$silence" ] || silence=$((now - last))
        [[ $first -gt 0 || $line != launches/s* ]] || first=$((now - start))
        last=$now
    done 3>"$fresh_work/output" < <(
        inside "$@" 2>&1
        echo $? >"$fresh_work/status"
    )
    return "$(<"$fresh_work/status")"
}

wrong=()
# shown WHAT PATTERN, not_shown WHAT PATTERN: the last output has a line like that, or none.
shown() { grep -qE "$2" "$fresh_work/output" || wrong+=("$1 not shown"); }
not_shown() { ! grep -qE "$2" "$fresh_work/output" || wrong+=("$1"); }
fails() { ! "$@" || wrong+=("${*: -2} did not fail"); }
works() { "$@" || wrong+=("status $?"); }

# shows_a_demo FOLDER [SECONDS]: make demo there, and that it shows everything. Where BPF is refused that is not known.
shows_a_demo() {
    watched "$1" make demo ARGS="--seconds ${2:-5}"
    local status=$?
    if [ -z "${REQUIRE_BPF:-}" ] && grep -q "cannot attach CUDA probes on this machine" "$fresh_work/output"; then
        echo "!!! NO BPF HERE: what the demo shows is not checked"
        return
    fi
    [ "$status" -eq 0 ] || wrong+=("status $status")
    shown launches '^launches/s [0-9,]{3,} '
    shown memory 'in use device [0-9.]+ GiB'
    shown GPU 'GPU 0 use [0-9]+%'
    shown NCCL 'NCCL 4 ranks .* collectives/s'
    shown "the late rank" 'rank 2 [345][0-9]\.[0-9]+ ms'
    shown costs 'the jobs pay [0-9.]+% of a core'
}

# What a case needs when it is run without the one for that.
set_up() { [ -e "$fresh_root$CLONE/.venv/.base" ] || watched "$CLONE" make setup; }

case_user() {
    clone "$THEIRS" visitor
    FRESH_AS=visitor fails watched "$THEIRS" make demo
    shown "that root is needed" "$NEEDS_ROOT"
    not_shown "set-up began all the same" '^setup:'
    FRESH_AS=visitor fails watched "$THEIRS" make test
    shown "what to install" '^    sudo apt-get update && sudo apt-get install .*libibverbs-dev'
}

case_demo() {
    shows_a_demo "$CLONE" 8
    [ "$silence" -lt $((PATIENCE * 1000000)) ] || wrong+=("$((silence / 1000000)) s without a line")
    echo "--- from nothing to the demo's first line: $((first / 1000000)) s; the longest silence: $((silence / 1000000)) s"
    [ $first -le $((FIRST_LINE * 1000000)) ] || echo "!!! more than $FIRST_LINE s: were packages cached, and is this machine idle?"
}

case_again() {
    local before=$fresh_work/before
    set_up
    inside "$CLONE" make demo ARGS="--seconds 15" >"$before" 2>&1 &
    local other=$! n=0
    until grep -q '^launches/s' "$before" || [ $((n += 1)) -gt 30 ]; do sleep 1; done
    shows_a_demo "$CLONE"
    not_shown "something was installed again" '^setup:'
    not_shown "the port of the other" '127.0.0.1:19445'
    wait $other || wrong+=("the first demo ended with status $?: $(tail -n 3 "$before")")
}

case_second() {
    clone "$SECOND"
    FRESH_BARE=1 works inside / bash -c '! command -v ps ip'
    FRESH_BARE=1 shows_a_demo "$SECOND"
}

case_offline() {
    set_up
    FRESH_NET=none shows_a_demo "$CLONE"
}

case_tracefs() {
    local doctor=.venv/bin/accel-exporter remedy
    set_up
    watched "$CLONE" "$doctor" doctor
    shown "a missing tracefs" '^(info|warn) +tracefs .*not mounted.* -> .*mount -t tracefs'
    not_shown "a traceback" Traceback
    remedy=$(grep -oE 'mount -t tracefs [a-z]+ [a-z/]+' "$fresh_work/output" | head -n 1)
    watched "$CLONE" bash -c "$remedy && $doctor doctor"
    shown "tracefs, once mounted" '^ok +tracefs '
}

case_refused() {
    set_up
    [ -e "$fresh_root$THEIRS" ] || clone "$THEIRS" visitor
    FRESH_AS=visitor fails watched "$THEIRS" make demo
    shown "that root is needed" "$NEEDS_ROOT"
    FRESH_AS=visitor watched "$CLONE" timeout --signal=INT 15 .venv/bin/accel-exporter --web.listen-address=127.0.0.1:19447
    shown "which capabilities are missing" 'probes will not work without CAP_BPF'
    not_shown "a traceback" Traceback
}

case_old() {
    local here=$fresh_root
    if new_root $OLD_RELEASE; then
        clone "$CLONE"
        fails watched "$CLONE" make demo
        shown "which Python is needed" '^setup: Python 3.11 or newer is needed and this is Python 3'
        not_shown "something was installed first" '^setup: installing'
    else
        wrong+=("no root of $OLD_RELEASE could be made: $(tail -n 2 "$fresh_work/log")")
    fi
    fresh_root=$here
}

case_unit() {
    works watched "$CLONE" make test-unit
    shown "pytest's count" '=+ .*[0-9]+ passed.* =+$'
}

case_test() {
    works watched "$CLONE" make test
    shown "pytest's count" '=+ .*[0-9]+ passed.* =+$'
}

echo "fresh-check: a bare root of $release"
new_root "$release" || not_checked "no root of $release could be made: $(tail -n 2 "$fresh_work/log")"
inside / useradd --create-home visitor
clone "$CLONE"

passed=0 failed=()
for name in "${CASES[@]}"; do
    [[ " ${only[*]} " == *" $name "* ]] || continue
    start=$SECONDS wrong=()
    printf -- '\n--- %s: %s\n' "$name" "${MEANS[$name]}"
    "case_$name"
    if [ ${#wrong[@]} -eq 0 ]; then
        passed=$((passed + 1))
        printf -- '--- %s: ok, %d s\n' "$name" $((SECONDS - start))
    else
        failed+=("$name")
        printf -- '--- %s FAILED:\n' "$name"
        printf -- '---     %s\n' "${wrong[@]}"
    fi
done
printf '\nfresh-check: %s: %d passed, %d failed %s\n' "$release" "$passed" ${#failed[@]} "${failed[*]}"
[ ${#failed[@]} -eq 0 ]
