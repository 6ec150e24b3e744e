#!/usr/bin/env bash
# Runs a command in a root with what a container or a virtual machine has mounted, and no more: no tracefs, no bpffs.
# Usage, as root: unshare --mount --propagation private [--net] enter.sh ROOT FOLDER COMMAND...
# FRESH_ARCHIVES, FRESH_PIP: folders of this machine that keep packages and pip's downloads.
# FRESH_SHARED: paths of this machine that the root has too, read-only, one a line.
set -euo pipefail

root=$1
shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount --bind "$FRESH_ARCHIVES" "$root/var/cache/apt/archives"
mkdir -p "$root/root/.cache/pip"
mount --bind "$FRESH_PIP" "$root/root/.cache/pip"
while IFS= read -r shared; do
    [ -n "$shared" ] || continue
    if [ -d "$shared" ]; then mkdir -p "$root$shared"; else mkdir -p "$root${shared%/*}" && touch "$root$shared"; fi
    mount --bind -o ro "$shared" "$root$shared"
done <<<"$FRESH_SHARED"
# A network namespace of our own has a loopback device that is down, and ip(8) need not be here: perl-base always is.
perl -e 'socket(my $s, 2, 2, 0) or die; my $up = pack("a16 s x14", "lo", 0x49); ioctl($s, 0x8914, $up) or die "lo: $!"'

mkdir -p "$root/old-root"
cd "$root"
pivot_root . old-root
exec chroot . bash -c 'umount --lazy /old-root && rmdir /old-root && cd "$0" && exec "$@"' "$@"
