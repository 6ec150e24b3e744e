#!/usr/bin/env bash
# Fetches Debian's kernel into build/rdma/kernel, unpacked and not installed. Does nothing when it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=build/rdma
compgen -G "$folder/kernel/boot/vmlinuz-*" >/dev/null && exit
package=$(apt-cache depends --important linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p')
if [ -z "$package" ]; then
    echo "rdma: apt knows no linux-image-amd64; run this on Debian, with lists (apt-get update)" >&2
    exit 1
fi
mkdir -p "$folder"
cd "$folder"
echo "rdma: fetching $package"
apt-get download -qq "$package" 2>/dev/null || { echo "rdma: apt-get download $package failed" >&2; exit 1; }
rm -rf kernel.part
dpkg-deb -x "$package"_*.deb kernel.part
rm "$package"_*.deb
depmod --basedir "$PWD/kernel.part" "$(basename kernel.part/lib/modules/*)"
mv kernel.part kernel
