#!/usr/bin/env bash
# What a virtual machine runs: sets up its side of the network and a soft-RoCE device, then runs what is asked of it.
# Usage: guest.sh FOLDER [ADDRESS]; without an address it has no network. Command N is a file FOLDER/N.run, its output
# N.out and N.err, its exit status N.status. Nothing is started while there is no command: processors are slow here.
folder=$1 address=${2-}
ulimit -l unlimited
ulimit -n 4096
ip link set lo up
[ -z "$address" ] || {
    modprobe -a virtio_net rdma_rxe ib_uverbs ip_tables iptable_filter xt_statistic xt_tcpudp
    for net in /sys/class/net/*; do
        [ -e "$net/device" ] && netdev=${net##*/}
    done
    ip address add "$address/24" dev "$netdev"
    ip link set "$netdev" mtu 4200 up || ip link set "$netdev" up
    rdma link add rxe0 type rxe netdev "$netdev"
} >"$folder/setup" 2>&1
echo $? >"$folder/ready"

mkfifo /run/never
exec 9<>/run/never
for ((number = 0; ; number++)); do
    printf -v command '%s/%04d' "$folder" "$number"
    until [ -e "$command.run" ]; do
        read -r -t 0.1 -u 9
    done
    {
        (source "$command.run") >"$command.out" 2>"$command.err" </dev/null 9<&-
        echo $? >"$command.status"
    } &
done
