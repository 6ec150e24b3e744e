"""The Xids of NVIDIA's driver: the meaning of each, the immediate action, and the category of the fault.

Codes, actions and the names of actions are those of NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, October
2025); the texts and the categories are ours. `make docs` writes docs/xid.md from this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FAULTY_GPU = "faulty_gpu"
HBM = "gpu_hbm3_memory"
SRAM = "gpu_sram_memory"
MEMORY = "gpu_memory"
PROCESSOR = "gpu_system_processor"
SOFTWARE = "software_bug"
NETWORK = "network_switch_cable"
POWER = "power_supply"
INFORMATION = "information"
UNKNOWN = "unknown"

CATEGORIES: Mapping[str, str] = {
    FAULTY_GPU: "the GPU or its NVLinks",
    HBM: "memory of the GPU, whatever its kind",
    SRAM: "caches and registers of the GPU",
    MEMORY: "memory or caches of the GPU: the code does not distinguish them",
    PROCESSOR: "a microcontroller of the GPU, or its firmware",
    SOFTWARE: "the job or the driver; hardware, when it follows one GPU from job to job",
    NETWORK: "a link, cable or switch between GPUs",
    POWER: "the GPU's power supply",
    INFORMATION: "no fault of its own",
    UNKNOWN: "a code that NVIDIA's catalog does not describe",
}
"""Rows of the table of interruptions in "The Llama 3 Herd of Models" (arXiv 2407.21783), and three more."""

IGNORE, RESTART_APP, RESET_GPU = "IGNORE", "RESTART_APP", "RESET_GPU"
RESTART_VM, RESTART_MACHINE = "RESTART_VM", "RESTART_BM"
DRAIN_P2P, DRAIN_AND_RESET = "DRAIN_P2P", "DRAIN_AND_RESET"
SUPPORT, UPDATE, MECHANICALS, UVM = "CONTACT_SUPPORT", "UPDATE_SWFW", "CHECK_MECHANICALS", "CHECK_UVM"
FOLLOW_45, FOLLOW_48 = "WORKFLOW_XID_45", "WORKFLOW_XID_48"
NVLINK, NVLINK5 = "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR"
VERDICT, AWAIT_VERDICT = "XID_154", "XID_154_EVAL"
NOT_GIVEN = ""

ACTIONS: Mapping[str, str] = {
    IGNORE: "nothing",
    RESTART_APP: "restart the job",
    RESET_GPU: "drain the node and reset the GPU",
    RESTART_VM: "restart the virtual machine that has the GPU",
    RESTART_MACHINE: "drain the node and reboot it",
    DRAIN_P2P: "end what uses the GPU from its peers",
    DRAIN_AND_RESET: "let the jobs end, then reset the GPU",
    SUPPORT: "contact NVIDIA's or the machine's support",
    UPDATE: "update driver, firmware or guest driver",
    MECHANICALS: "check that the board and its power cables are seated",
    UVM: "reset the GPU where managed memory or vGPUs are used, else nothing",
    FOLLOW_45: "follow the Xid before it; alone, restart the fabric manager",
    FOLLOW_48: "reset the GPU; with Xid 63 or 64 drain it first",
    NVLINK: "read the registers in the line: cable and seating, or the GPU",
    NVLINK5: "look the line up by unit and status: it could not be decoded",
    VERDICT: "do what the line requests",
    AWAIT_VERDICT: "do what the Xid 154 beside it requests; without one, restart the job",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the catalog: `action` is a key of ACTIONS or NOT_GIVEN, `category` a key of CATEGORIES."""

    text: str
    action: str
    category: str


def _engines(text: str, codes: Iterable[int], first: int = 0) -> dict[int, Entry]:
    """Returns the entries of one fault for numbered engines, by code."""
    return {code: Entry(text.format(n), RESTART_APP, FAULTY_GPU) for n, code in enumerate(codes, first)}


XIDS: Mapping[int, Entry] = {
    8: Entry("work on a channel made no progress in time", RESTART_APP, SOFTWARE),
    11: Entry("commands for an engine that is not there, or damaged", RESTART_APP, SOFTWARE),
    13: Entry("a kernel or a graphics command failed on the GPU", RESTART_APP, SOFTWARE),
    25: Entry("a command that is not allowed on its channel", RESTART_APP, SOFTWARE),
    31: Entry("an access to GPU memory that is not mapped", RESTART_APP, SOFTWARE),
    32: Entry("commands arrived damaged at the GPU", RESTART_APP, SOFTWARE),
    37: Entry("firmware received a request that it does not know", IGNORE, PROCESSOR),
    38: Entry("the context-switching firmware did not answer in time", IGNORE, PROCESSOR),
    **_engines("copy engine {} failed", range(39, 42)),
    43: Entry("a channel was reset after its work had failed", IGNORE, SOFTWARE),
    44: Entry("a fault while switching contexts", IGNORE, FAULTY_GPU),
    45: Entry("a channel was removed, because of an earlier fault or the end of its process", FOLLOW_45, INFORMATION),
    46: Entry("the GPU did not answer in time", RESET_GPU, FAULTY_GPU),
    48: Entry("an ECC error of two bits, not correctable", FOLLOW_48, MEMORY),
    54: Entry("the board's auxiliary power is not connected", MECHANICALS, POWER),
    60: Entry("the security processor failed on a video command", RESTART_APP, SOFTWARE),
    62: Entry("the power management processor halted", RESET_GPU, PROCESSOR),
    63: Entry("a row of memory will be remapped, or a page retired", IGNORE, HBM),
    64: Entry("a row of memory could not be remapped, or a page not retired", RESET_GPU, HBM),
    66: Entry("the driver touched a register it must not", IGNORE, SOFTWARE),
    67: Entry("the driver was refused a register", IGNORE, SOFTWARE),
    **_engines("video decoder {} failed", (68, 83, 84, 88, 89, 96, 97, 98)),
    69: Entry("a command that its engine's class does not have", RESTART_APP, SOFTWARE),
    **_engines("copy engine {} failed", (70, 71, 72, 75, 76, 77, 85, *range(126, 136)), 3),
    74: Entry("an NVLink failed", NVLINK, FAULTY_GPU),
    78: Entry("a vGPU could not be started", UPDATE, SOFTWARE),
    79: Entry("the GPU does not answer on the PCIe bus any more", RESTART_MACHINE, FAULTY_GPU),
    80: Entry("commands and their checksum differ", RESTART_APP, SOFTWARE),
    **_engines("JPEG engine {} failed", (82, *range(99, 106))),
    86: Entry("the optical flow engine failed", RESTART_APP, FAULTY_GPU),
    92: Entry("correctable ECC errors come too often", IGNORE, MEMORY),
    93: Entry("the board's settings memory is nearing its last erase", IGNORE, INFORMATION),
    94: Entry("a memory error that only the jobs on it feel", RESTART_APP, MEMORY),
    95: Entry("a memory error that reaches every job on the GPU", RESET_GPU, MEMORY),
    106: Entry("a test message of the management bus", IGNORE, INFORMATION),
    107: Entry("a silent test message of the management bus", IGNORE, INFORMATION),
    109: Entry("a context did not give way in time", RESET_GPU, SOFTWARE),
    110: Entry("the GPU's security unit reports a fault", RESET_GPU, FAULTY_GPU),
    119: Entry("the GPU's system processor (GSP) did not answer in time", RESET_GPU, PROCESSOR),
    120: Entry("the GPU's system processor (GSP) failed", RESET_GPU, PROCESSOR),
    121: Entry("an error on the link between CPU and GPU", IGNORE, FAULTY_GPU),
    136: Entry("an NVLink could not be trained", RESET_GPU, FAULTY_GPU),
    137: Entry("an access through NVLink to a peer's memory that is not mapped", IGNORE, SOFTWARE),
    139: Entry("optical flow engine 1 failed", RESTART_APP, FAULTY_GPU),
    140: Entry("an ECC error was not recovered from", RESET_GPU, MEMORY),
    141: Entry("an error on CUDA's fast path", IGNORE, SOFTWARE),
    142: Entry("video encoder 3 failed", SUPPORT, FAULTY_GPU),
    143: Entry("the GPU could not be initialised", RESET_GPU, FAULTY_GPU),
    144: Entry("NVLink: between GPU and links (SAW)", NVLINK5, FAULTY_GPU),
    145: Entry("NVLink: requests and responses (RLW)", NVLINK5, FAULTY_GPU),
    146: Entry("NVLink: transactions (TLW)", NVLINK5, FAULTY_GPU),
    147: Entry("NVLink: crossbar (TREX)", NVLINK5, FAULTY_GPU),
    148: Entry("NVLink: control (NVLPW)", NVLINK5, FAULTY_GPU),
    149: Entry("NVLink: network interface (NETIR)", NVLINK5, FAULTY_GPU),
    150: Entry("NVLink: management engine (MSE)", NVLINK5, FAULTY_GPU),
    151: Entry("encryption keys could not be renewed", RESTART_VM, INFORMATION),
    152: Entry("the deep learning accelerator's memory unit failed", IGNORE, FAULTY_GPU),
    153: Entry("the deep learning accelerator did not answer in time", IGNORE, FAULTY_GPU),
    154: Entry("the driver requests another recovery than before", VERDICT, INFORMATION),
    155: Entry("NVLink: a fault that software defines", RESET_GPU, FAULTY_GPU),
    156: Entry("a part of the GPU is taken out of use", RESET_GPU, HBM),
    157: Entry("a part of the GPU could not be taken out of use", IGNORE, HBM),
    158: Entry("the GPU did not answer in time, for good", RESET_GPU, FAULTY_GPU),
    159: Entry("an error on the coherent link to the CPU, without data", UVM, FAULTY_GPU),
    160: Entry("a memory channel is taken out of use", IGNORE, HBM),
    161: Entry("a memory channel could not be taken out of use", IGNORE, HBM),
    162: Entry("power smoothing is on again", NOT_GIVEN, INFORMATION),
    163: Entry("power smoothing is off", NOT_GIVEN, INFORMATION),
    164: Entry("power smoothing is nearing the end of its life", NOT_GIVEN, INFORMATION),
    165: Entry("power smoothing has reached the end of its life", NOT_GIVEN, INFORMATION),
    166: Entry("unencrypted NVLink traffic in confidential computing", NOT_GIVEN, INFORMATION),
    167: Entry("a PCIe request was never answered", NOT_GIVEN, FAULTY_GPU),
    168: Entry("errors in protected memory: less memory is usable", NOT_GIVEN, HBM),
    169: Entry("the security processor halted", NOT_GIVEN, PROCESSOR),
    170: Entry("an NVLink interrupt in confidential computing", NOT_GIVEN, INFORMATION),
    171: Entry("the error of the Xid 48 beside it is in DRAM", NOT_GIVEN, HBM),
    172: Entry("the error of the Xid 48 beside it is in SRAM", NOT_GIVEN, SRAM),
    173: Entry("the link between CPU and GPU failed for good", RESTART_MACHINE, FAULTY_GPU),
}
"""173 is not in that catalog; its action is that of gpud, which reboots."""

_UNDESCRIBED = Entry("not described by NVIDIA", SUPPORT, UNKNOWN)

RECOVERIES: Mapping[int, str] = {
    0: IGNORE,
    1: RESET_GPU,
    2: RESTART_MACHINE,
    3: DRAIN_P2P,
    4: DRAIN_AND_RESET,
}
"""Actions that Xid 154 requests, by number: that of NVML's field 230, whatever text a driver version prints."""


def xid(code: int) -> Entry:
    """Returns the entry of a code; for an unknown code, an entry of category UNKNOWN."""
    return XIDS.get(code, _UNDESCRIBED)
