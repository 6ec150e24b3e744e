#!/bin/busybox sh
# The first process of a virtual machine: mounts the root file system of the machine it runs on, with changes kept in
# memory, and begins guest.sh. /settings has what boot.py decides: with a repository the root is not that machine's, and
# the repository is mounted on it in the same manner.
export PATH=/bin
/bin/busybox --install -s /bin
. /settings
mkdir -p /changes /root /proc
mount -t devtmpfs dev /dev
mount -t proc proc /proc
while read -r module; do insmod "/modules/$module"; done </modules/order

shared="trans=virtio,version=9p2000.L,msize=512000"
# mount_changeable TAG FOLDER. Nobody changes these files meanwhile: what was read once is not read again.
mount_changeable() {
    mkdir -p "/host/$1" "/changes/$1/upper" "/changes/$1/work" "$2"
    mount -t 9p -o "ro,cache=loose,$shared" "$1" "/host/$1"
    mount -t overlay -o "lowerdir=/host/$1,upperdir=/changes/$1/upper,workdir=/changes/$1/work" overlay "$2"
}
mount -t tmpfs changes /changes
mount_changeable root /root
[ -z "$repository" ] || mount_changeable repository "/root$repository"

mount --move /dev /root/dev
mount --move /proc /root/proc
mount -t sysfs sys /root/sys
mkdir -p /root/dev/shm /root/dev/pts
for folder in tmp run dev/shm; do mount -t tmpfs tmpfs "/root/$folder"; done
mount -t devpts devpts /root/dev/pts
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mount -t debugfs debug /root/sys/kernel/debug
mount -t tracefs trace /root/sys/kernel/tracing
mount -t bpf bpf /root/sys/fs/bpf
mkdir -p "/root/lib/modules/$(uname -r)" "/root$folder_of_commands"
mount --bind "/root$modules" "/root/lib/modules/$(uname -r)"
# Without it no command would ever arrive; the end of the first process is the end of the machine.
mount -t 9p -o "rw,cache=none,$shared" commands "/root$folder_of_commands" || exit 1
hostname "$name"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
exec switch_root /root /bin/bash "$guest" "$folder_of_commands" $address
