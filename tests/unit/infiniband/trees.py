"""RDMA devices as several drivers show them in sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FILES = {
    "PMA": """
        VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery
        local_link_integrity_errors multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors
        port_rcv_data port_rcv_errors port_rcv_packets port_rcv_remote_physical_errors
        port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data port_xmit_discards
        port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets unicast_xmit_packets
    """,
    "MLX5": """
        duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets
        out_of_buffer out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error
        req_remote_access_errors req_remote_invalid_request req_rnr_retries_exceeded
        req_transport_retries_exceeded resp_cqe_error resp_cqe_flush_error resp_local_length_error
        resp_remote_access_errors rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to roce_slow_restart
        roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests
        rx_dct_connect rx_icrc_encapsulated rx_read_requests rx_write_requests
    """,
    "RXE": """
        ack_deferred completer_retry_err duplicate_request link_downed lifespan out_of_seq_request rcvd_pkts
        rcvd_rnr_err rcvd_seq_err rdma_recvs rdma_sends retry_exceeded_err retry_rnr_exceeded_err send_err
        send_rnr_err sent_pkts
    """,
    "EFA": """
        rdma_read_bytes rdma_read_resp_bytes rdma_read_wr_err rdma_read_wrs recv_bytes recv_wrs retrans_bytes
        retrans_pkts retrans_timeout_events rx_bytes rx_drops rx_pkts send_bytes send_wrs tx_bytes tx_pkts
    """,
    "IRDMA_GEN2": """
        InOptErrors InProtoErrors InRdmaReads InRdmaSends InRdmaWrites OutRdmaReads OutRdmaSends OutRdmaWrites
        RdmaBnd RdmaInv RetransSegs RxECNMrkd RxUDP TxUDP cnpHandled cnpIgnored cnpSent ip4InOctets ip4InPkts
        ip4OutOctets ip4OutPkts ip6InOctets ip6InPkts ip6OutOctets ip6OutPkts
    """,
    "MANA": """
        current_rate num_qps_congested received_cnps requester_implicit_nak requester_oos_nak
        requester_rnr_nak requester_timeout responder_oos responder_rnr_nak rx_bytes rx_packets tx_bytes
        tx_packets
    """,
}
PMA, MLX5, RXE, EFA, IRDMA_GEN2, MANA = (text.split() for text in _FILES.values())
IRDMA_GEN3 = ["Nak Sequence Error", "Nak Sequence Error Implied", "RNR received", "RNR sent", "RTO", "CRC errors"]


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def count(folder: Path, names: list[str], values: Mapping[str, object]) -> None:
    """Counter files: those not given are 0."""
    for name in names:
        write(folder / name, values.get(name, 0))


class Tree:
    """A /sys with RDMA devices."""

    def __init__(self, sys: Path) -> None:
        self.sys = sys
        (sys / "class/infiniband").mkdir(parents=True, exist_ok=True)

    def port(self, device: str, number: int = 1) -> Path:
        return self.sys / "class/infiniband" / device / "ports" / str(number)

    def device(
        self,
        name: str,
        driver: str = "",
        bus_id: str = "0000:18:00.0",
        link_layer: str = "Ethernet",
        netdev: str = "",
        rate: str = "400 Gb/sec (4X NDR)",
        number: int = 1,
    ) -> Path:
        """A device with an active port; `driver` is the one of its PCI function, a software device has none."""
        path = self.sys / "class/infiniband" / name
        write(path / "fw_ver", "28.39.1002")
        write(path / "node_type", "1: CA")
        if driver:
            write(path / "board_id", "MT_0000000838")
            write(path / "hca_type", "MT4129")
            pci = self.sys / "devices/pci0000:00" / bus_id
            drivers = self.sys / "bus/pci/drivers" / driver
            pci.mkdir(parents=True, exist_ok=True)
            drivers.mkdir(parents=True, exist_ok=True)
            if not (pci / "driver").exists():
                (pci / "driver").symlink_to(drivers)
            if not (path / "device").exists():
                (path / "device").symlink_to(pci)
        else:
            write(path / "parent", netdev)
        port = self.port(name, number)
        write(port / "state", "4: ACTIVE")
        write(port / "phys_state", "5: LinkUp")
        write(port / "rate", rate)
        write(port / "link_layer", link_layer)
        write(port / "hw_counters/lifespan", 10)
        if netdev:
            write(port / "gid_attrs/ndevs/0", netdev)
            if driver:
                write(path / "device/net" / netdev / "carrier_down_count", 3)
                write(path / "device/net" / netdev / "dev_port", number - 1)
        return port

    def mlx5(self, name: str = "mlx5_0", **values: object) -> Path:
        """A ConnectX-7 on RoCE."""
        port = self.device(name, "mlx5_core", netdev="eth0")
        count(port / "counters", PMA, values)
        count(port / "hw_counters", MLX5, values)
        return port

    def infiniband(self, name: str = "mlx5_0", **values: object) -> Path:
        """A ConnectX-7 on InfiniBand."""
        port = self.device(name, "mlx5_core", link_layer="InfiniBand")
        count(port / "counters", PMA, values)
        count(port / "hw_counters", MLX5, values)
        return port

    def rxe(self, name: str = "rxe0", **values: object) -> Path:
        """As of Linux 6.1: no counters/."""
        port = self.device(name, netdev="eth0", rate="2.5 Gb/sec (1X SDR)")
        count(port / "hw_counters", RXE, values)
        return port
