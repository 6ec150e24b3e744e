"""docs/faults.md, from the tables of signals, categories and their coverage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from exporter.faults import categories
from exporter.faults.signals import KERNEL_LOG, FaultSignal
from exporter.faults.transitions import CONDITIONS, Condition
from exporter.faults.xid import catalog
from tools.docs import coverage

HEAD = """
`accel_node_fault_total{category,component,signal}` counts faults that stop jobs;
`accel_node_fault_last_timestamp_seconds` has the time of the newest. `category` is a row of the table of unexpected
interruptions in "The Llama 3 Herd of Models" (arXiv 2407.21783, table 5: 419 of them in 54 days on 16,384 GPUs), so
that your faults can be compared with those. Xids are counted here too, by the category of their code
([xid.md](xid.md)), as `xid_79` and so on; three
categories of Xids are no rows: `gpu_memory`, `information` and `unknown`.

A counter of the hardware that was above 0 before the exporter started is no fault: it is in the counter's own metric.
What the kernel log already held at the start is in `accel_node_fault_replayed`, with its time, and pages nobody again.
A state that is bad at the start (an alarm, a dead drive) is there too. Its alert fires as long as the state lasts; a
restart of the exporter neither counts the state again nor resolves the alert, unless the restart takes more than five
minutes.
A reload of the settings reads the kernel log again: it counts no record twice, and a record that came meanwhile as a
new one.
`accel_node_fault_source_available` is 0 for a source that this node does not have: nothing is known of its faults then.
With `--no-collector.faults` the faults that other collectors find (Xids, crashes of processes that use a GPU) are
still shown, because rules and dashboards that sum `accel_node_fault_total` would take their absence for a healthy node.
"""
RECORDED = """
alerts/recording.yaml sums over the nodes of a job, a pod and a place. [accel_node_topology_info](topology.md) has the
rack, the leaf switch and the NVLink domain of each node, with `--set topology.nodeLabels=true` of the chart from the
labels of nodes in Kubernetes. Labels `rack` and `switch` of a target count before it: set them with `relabel_configs`,
or `relabelings` of the monitor with `attachMetadata: {node: true}`.
"""
EXPECTED = """
`--collector.faults.expected=gpu=8,rdma_port=9,nvlink=144` gives what the node should have working: DevicesMissing fires
while it has less, also when the device was not there at the boot. Without the flag the node is compared with the other
nodes of the same GPU, from three of them on. In Kubernetes set it for each pool of nodes (`config` of the chart).

What jobs depend on besides devices: `accel_node_service_running{service}` (fabricmanager, imex, persistenced; by the
name of a process of a system user, in a container only of one with CAP_SYS_ADMIN) and `gpu_processes_blocked`
(processes on GPUs that are stuck in the kernel), looked at once a minute where NVIDIA's driver is loaded;
`accel_node_clock_synchronized` and `accel_node_clock_max_error_seconds`, by adjtimex(2), which changes nothing.
"""
REPORTED = """
Other programs can report what the exporter does not observe: with `--collector.faults.reports=FOLDER`, a file in
that folder is a fault or a maintenance of the node. Its name is `CATEGORY.COMPONENT`, such as `power_supply.PSU1` or
`host_maintenance.gce`; the file holds the Unix time from which the report counts, or is empty and counts from the
file's last change. While the file exists it is `accel_node_report_timestamp_seconds{category,component}` and fires
NodeMaintenanceAnnounced or FaultReported; accel_node_fault_total does not count it. Only root should be able to write
into the folder.

- **Maintenance that a cloud announces.** Each metadata service has its own network protocol, so the exporter leaves
  them to a script. On Google's cloud, every minute:

  ```sh
  file=/run/node-reports/host_maintenance.gce
  at=http://metadata.google.internal/computeMetadata/v1/instance/maintenance-event
  event=$(curl -sf -m 5 -H 'Metadata-Flavor: Google' "$at") || exit 1
  if [ "$event" = NONE ]; then rm -f "$file"; elif [ ! -e "$file" ]; then date +%s >"$file"; fi
  ```

- **Sensors that only Redfish has.** By IPMI the exporter queries the management controller itself ([ipmi.md](ipmi.md)).
  Redfish is behind a password in the management network: a program with access there reports sensors out of limits.
- **Tests that fail.** `silent_data_corruption.NAME`, when a test of a GPU found wrong numbers.

Memory errors are read from the counters of EDAC and not from the tracepoint ras:mc_event: the kernel does both in
one function (edac_raw_mc_handle_error), and a counter includes earlier errors. PCIe errors are read from
the AER counters of sysfs for the same reason; many kernels have no ras:aer_event.
"""
SWITCHES = """
SwitchSuspected fires when links of two nodes or more, and of a tenth of its nodes, to one `switch` (the leaf of
node or device) are down that were active. [Alertmanager's configuration](alerts.md) lets it stand for the alerts of
the ports.
"""
CRASHES = (
    "process_sigabrt, process_sigsegv, …",
    categories.SOFTWARE,
    "a process that used a GPU was ended by such a signal; gpu_process_exits_total counts all ends",
    "see its log or core file; restart the job",
)
SIGNALS: tuple[FaultSignal | Condition, ...] = (*KERNEL_LOG, *CONDITIONS)
Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]


def page(notice: str, table: Table) -> str:
    """The whole page, which begins with `notice`; `table` formats a head and rows as Markdown."""
    signals = [*((it.name, it.category, it.meaning, it.action) for it in SIGNALS), CRASHES]
    parts = [
        notice,
        "# Faults that stop jobs",
        HEAD.strip(),
        "## Row by row",
        table(
            ("row of the table", "times", "signals", "alerts", "not seen"), [_row(it) for it in categories.CATEGORIES]
        ),
        "## Signals",
        table(
            ("signal", "category", "what happened", "what to do"),
            [(f"`{name}`", f"`{category}`", meaning, action) for name, category, meaning, action in signals],
        ),
        "## By job, rack and switch",
        RECORDED.strip(),
        SWITCHES.strip(),
        "## Expected of a node",
        EXPECTED.strip(),
        "## Reported by others",
        REPORTED.strip(),
        "## In the words of another fleet",
        table(
            ("its cause", "categories here", "alerts", "not seen"),
            [
                (it.name, ", ".join(f"`{label}`" for label in it.categories), _alerts(it.alerts), it.blind)
                for it in coverage.ELSEWHERE
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _row(category: categories.Category) -> tuple[str, ...]:
    covered = coverage.COVERAGE[category.label]
    own = [f"`{it.name}`" for it in SIGNALS if it.category == category.label]
    codes = sorted(code for code, it in catalog.XIDS.items() if it.category == category.label)
    xids = [f"Xid {', '.join(map(str, codes))}"] if codes else []
    signals = "; ".join(filter(None, (", ".join(own), *xids, covered.besides))) or "none"
    return f"{category.name} (`{category.label}`)", str(category.count), signals, _alerts(covered.alerts), covered.blind


def _alerts(names: Iterable[str]) -> str:
    return ", ".join(f"[{name}](runbooks/{name.lower()}.md)" for name in names)
