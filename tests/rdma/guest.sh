#!/usr/bin/env bash
# What a virtual machine runs: sets up its side of the network and a soft-RoCE device, then runs what is asked of it.
# Usage: guest.sh FOLDER [ADDRESS]; without an address it has no network. A command is a file FOLDER/N.run, its output
# N.out, its exit status N.status.
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

while sleep 0.1; do
    for command in "$folder"/*.run; do
        [ -e "$command" ] || continue
        name=${command%.run}
        mv "$command" "$name.taken"
        (
            bash "$name.taken" >"$name.out" 2>"$name.err" </dev/null
            echo $? >"$name.part"
            mv "$name.part" "$name.status"
        ) &
    done
done
