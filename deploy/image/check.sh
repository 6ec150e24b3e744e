#!/usr/bin/env bash
# Builds the Dockerfile for real where there is neither an engine nor a registry of images: a minimal Debian made by
# debootstrap is the base, buildah runs the steps in a chroot, and the exporter is run from the result. Needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."

. deploy/debian.sh

SUITE=bookworm
BASE=localhost/debian:$SUITE-slim
IMAGE=localhost/accel-exporter:check
# Only here, so that a check neither sees nor leaves anything in the machine's own image store.
work=$(mktemp -d)
buildah() { command buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }
trap 'buildah umount --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

if [ "$(id -u)" -ne 0 ]; then
    echo "image: debootstrap and buildah's chroot isolation need root: sudo make image-check" >&2
    exit 1
fi

echo "image: a minimal Debian $SUITE"
if ! make_root "$SUITE" "$work/log"; then
    tail -5 "$work/log" >&2
    echo "!!! IMAGE NOT CHECKED: Debian's archive cannot be reached from here, so the image was not built." >&2
    [ -z "${REQUIRE_IMAGE:-}" ]
    exit
fi
container=$(buildah from scratch)
buildah add --quiet "$container" "$root_base" / >/dev/null
buildah commit --quiet --rm "$container" "$BASE" >/dev/null

options=(--isolation chroot --network host --pull-never --build-arg "BASE=$BASE" --tag "$IMAGE" --file Dockerfile
    --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)")
for setting in PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
    [ -z "${!setting:-}" ] || options+=(--build-arg "$setting")
done
# A certificate that pip is set to trust here must be there too; it is mounted, never copied into the image.
if [ -n "${PIP_CERT:-}" ]; then
    options+=(--build-arg PIP_CERT=/run/pip-certificates.crt --volume "$PIP_CERT:/run/pip-certificates.crt:ro")
fi
echo "image: building"
if ! buildah bud "${options[@]}" . >"$work/log" 2>&1; then
    tail -40 "$work/log" >&2
    echo "image: the build failed; the end of its output is above" >&2
    exit 1
fi

echo "image: running the exporter from it"
# Its default profile of system calls knows bpf() only by CAP_SYS_ADMIN.
container=$(buildah from --pull-never --security-opt seccomp=unconfined "$IMAGE")
root=$(buildah mount "$container")
own=$(du -sm "$root/opt/accel-exporter" | cut -f1) whole=$(du -sm "$root" | cut -f1)
echo "image: $whole MB, of which the exporter and its Python packages are $own MB, and the base $(($(stat -c %s "$root_base") >> 20)) MB"
# With the capabilities that the image's label names and no others; buildah's chroot adds its own, setpriv drops those.
label='{{index .OCIv1.Config.Labels "accel-exporter.capabilities"}}'
granted=() bounds=-all
for capability in $(buildah inspect --format "$label" "$container"); do
    granted+=(--cap-add "CAP_$capability")
    bounds+=,+${capability,,}
done
run() {
    buildah run --isolation chroot --network host "${granted[@]}" "$container" -- \
        setpriv --bounding-set "$bounds" --inh-caps -all "$@"
}
run accel-exporter --version
run ipmi-sensors --version | head -n 1
if [ -n "${REQUIRE_BPF:-}" ]; then
    run accel-exporter doctor --check
else
    # Without BPF doctor has faults to report, which is its status 1; a report it must be.
    { run accel-exporter doctor || true; } | tee "$work/doctor"
    grep -q ' ok, .* fail$' "$work/doctor"
fi
objects=$(find "$root/opt/accel-exporter" -name '*.bpf.o' | wc -l)
sources=$(find bpf -name "*.bpf.c" | wc -l)
if [ "$objects" -ne $((2 * sources)) ]; then
    echo "image: it holds $objects BPF objects; $sources sources for two architectures make $((2 * sources))" >&2
    exit 1
fi
tools=$(find "$root/usr/bin" "$root/opt/accel-exporter/bin" -name 'clang*' -o -name 'llvm*' -o -name 'pip*')
if [ -n "$tools" ]; then
    echo "image: build tools were left in it: $tools" >&2
    exit 1
fi
echo "image: ok, $objects BPF objects, no build tools"
