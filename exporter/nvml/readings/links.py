"""Readings of NVLinks: of all links together, and of each link."""

from __future__ import annotations

from exporter.nvml import metrics
from exporter.nvml.reading import ALL_LINKS, KIB, MBPS, Call, FieldValue, Reading, wide


def _error(error: str, field: str, counter: int | None = None, unless: str = "") -> Reading:
    """Returns the errors of one link. NVML's `counter` of them is called unless another reading counts them."""
    fallback = None
    if counter is not None:
        fallback = Call("nvmlDeviceGetNvLinkErrorCounter", wide, (counter,), unless=unless)
    return Reading(error, FieldValue(field), metrics.LINK_ERRORS, labels={"error": error}, fallback=fallback)


FAST = (
    Reading(
        "nvlink_tx_kib",
        FieldValue("DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS),
        metrics.NVLINK_IO,
        KIB,
        {"direction": "transmit"},
    ),
    Reading(
        "nvlink_rx_kib",
        FieldValue("DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS),
        metrics.NVLINK_IO,
        KIB,
        {"direction": "receive"},
    ),
)

SLOW = tuple(
    Reading(f"nvlink_{error}", FieldValue(field), metrics.NVLINK_ERRORS, labels={"error": error})
    for error, field in {
        "crc_flit_errors": "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "crc_data_errors": "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "replays": "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "recoveries": "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "ecc_data_errors": "DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL",
    }.items()
)

LINK_FAST = (
    Reading("tx_kib", FieldValue("DEV_NVLINK_THROUGHPUT_DATA_TX"), metrics.LINK_IO, KIB, {"direction": "transmit"}),
    Reading("rx_kib", FieldValue("DEV_NVLINK_THROUGHPUT_DATA_RX"), metrics.LINK_IO, KIB, {"direction": "receive"}),
    Reading(
        "tx_bytes",
        FieldValue("DEV_NVLINK_COUNT_XMIT_BYTES"),
        metrics.LINK_IO,
        labels={"direction": "transmit"},
        duplicate_of="tx_kib",
    ),
    Reading(
        "rx_bytes",
        FieldValue("DEV_NVLINK_COUNT_RCV_BYTES"),
        metrics.LINK_IO,
        labels={"direction": "receive"},
        duplicate_of="rx_kib",
    ),
)

LINK_SLOW = (
    Reading("active", Call("nvmlDeviceGetNvLinkState"), metrics.LINK_UP),
    Reading("speed_mbps", FieldValue("DEV_NVLINK_GET_SPEED"), metrics.LINK_SPEED, MBPS),
    _error("replays", "DEV_NVLINK_REPLAY_ERROR_COUNT_L{link}", 0, unless="dl_replays"),
    _error("recoveries", "DEV_NVLINK_RECOVERY_ERROR_COUNT_L{link}", 1, unless="dl_recoveries"),
    _error("crc_flit_errors", "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L{link}", 2, unless="dl_crc_errors"),
    _error("crc_data_errors", "DEV_NVLINK_CRC_DATA_ERROR_COUNT_L{link}", 3, unless="dl_crc_errors"),
    _error("ecc_data_errors", "DEV_NVLINK_ECC_DATA_ERROR_COUNT_L{link}", 4, unless="dl_crc_errors"),
    _error("dl_replays", "DEV_NVLINK_ERROR_DL_REPLAY"),
    _error("dl_recoveries", "DEV_NVLINK_ERROR_DL_RECOVERY"),
    _error("dl_crc_errors", "DEV_NVLINK_ERROR_DL_CRC"),
    _error("malformed_packets", "DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS"),
    _error("buffer_overruns", "DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS"),
    _error("receive_errors", "DEV_NVLINK_COUNT_RCV_ERRORS"),
    _error("receive_remote_errors", "DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS"),
    _error("receive_general_errors", "DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS"),
    _error("link_integrity_errors", "DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS"),
    _error("transmit_discards", "DEV_NVLINK_COUNT_XMIT_DISCARDS"),
    _error("recovery_successes", "DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS"),
    _error("recovery_failures", "DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"),
    _error("effective_errors", "DEV_NVLINK_COUNT_EFFECTIVE_ERRORS"),
    _error("symbol_errors", "DEV_NVLINK_COUNT_SYMBOL_ERRORS"),
)
