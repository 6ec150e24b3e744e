"""Incidents as timelines, and the series of nodes, ranks and links that they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MINUTES = 60
"""The length of a timeline."""
BOOT = "-90000x60"
SELDOM = "4m"
"""Evaluation interval of rules over 2,000 ranks: at 60 times real time a small machine cannot evaluate more often."""


@dataclass(frozen=True)
class Notice:
    """An alert that a person is notified of by a minute of the timeline; its summary names what is broken."""

    alert: str
    names: str
    minute: int


@dataclass(frozen=True)
class Incident:
    """A timeline. `series` are in promtool's notation: values a minute apart, by series without the label job.

    A person is notified of each of `pages` and `tickets` once, and of nothing else.
    """

    name: str
    series: Mapping[str, str]
    pages: Sequence[Notice] = ()
    tickets: Sequence[Notice] = ()
    alone: bool = False
    """True if a Prometheus has this cluster alone."""
    large: bool = False
    """True for a cluster of thousands of ranks: rules are evaluated less often, after the small incidents."""

    @property
    def evaluated(self) -> str:
        """Evaluation interval of the rules."""
        return SELDOM if self.large else "1m"


def node_series(instance: str, gpus: int = 2, **labels: str) -> dict[str, str]:
    """A healthy node: up, booted a day ago, its GPUs working and busy."""
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    series = {
        f'up{{instance="{instance}"{more}}}': "1x60",
        f'accel_node_boot_timestamp_seconds{{instance="{instance}",boot_id="b"{more}}}': BOOT,
        f'process_start_time_seconds{{instance="{instance}"{more}}}': BOOT,
    }
    for gpu in range(gpus):
        which = f'instance="{instance}",gpu="{gpu}",gpu_uuid="{instance}-{gpu}"{more}'
        series |= {
            f'hw_status{{{which},hw_type="gpu",state="ok"}}': "1x60",
            f"gpu_recovery_action{{{which}}}": "0x60",
            f'hw_gpu_utilization_ratio{{{which},task="general"}}': "1x60",
            f'hw_gpu_info{{{which},name="H100"}}': "1x60",
        }
    return series


def rank_series(
    instance: str, pod: str, last: str, gpus: int = 2, in_flight: str = "0x60", profile: str = "node"
) -> dict[str, str]:
    """The ranks of a job on a node, one for each GPU, with the times of their last collective and launch.

    Without a pod they are processes of the host. With the profile fleet they have no process labels.
    """
    series = {}
    for rank in range(gpus):
        process = f'instance="{instance}"'
        if profile != "fleet":
            process += f',pid="{1000 + rank}",comm="python3"'
        if pod:
            process += f',namespace="ml",pod="{pod}"'
        gpu = f'gpu="{rank}"' + (f',gpu_uuid="{instance}-{rank}"' if profile != "fleet" else "")
        series |= {
            f"nccl_last_call_timestamp_seconds{{{process},{gpu}}}": last,
            f"gpu_cuda_last_launch_timestamp_seconds{{{process},{gpu}}}": last,
            f"nccl_calls_in_flight{{{process},{gpu}}}": in_flight,
        }
    return series


def link_series(instance: str, state: str, used: bool = True, device: str = "mlx5_0", **labels: str) -> dict[str, str]:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    port = f'instance="{instance}",device="{device}",port="1"{more}'
    sent = "0+1000000000x60" if used else "0x60"
    return {
        f"rdma_link_state{{{port}}}": state,
        f'rdma_port_io_bytes_total{{{port},direction="transmit"}}': sent,
    }


RUNS = "0+60x60"
STANDS = "0+60x10 600x50"
