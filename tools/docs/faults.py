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
`accel_node_fault_last_timestamp_seconds` has the time of the newest fault. To compare your faults with those of another
fleet, `category` is a row of the table of unexpected interruptions in "The Llama 3 Herd of Models" (arXiv 2407.21783,
table 5: 419 interruptions in 54 days on 16,384 GPUs). Xids are counted here too, by the category of their code
([xid.md](xid.md)), for example as `xid_79`. Three categories of Xids are not rows of that table: `gpu_memory`,
`information` and `unknown`.

A hardware counter that was above 0 before the exporter started is not a fault; it is in the counter's own metric.
Faults that were already in the kernel log at the start are in `accel_node_fault_replayed`, with their time, and do not
page again. A state that is bad at the start (an alarm, a failed drive) is there too. Its alert fires as long as the
state lasts. A restart of the exporter neither counts the state again nor resolves the alert, unless the restart takes
more than five minutes.

A reload of the settings reads the kernel log again. It counts no record twice, and it counts records that were logged
in the meantime as new.

`accel_node_fault_source_available` is 0 for a source that this node does not have: its faults are then unknown.
With `--no-collector.faults` the faults that other collectors find (Xids, crashes of processes that use a GPU) are
still exported. Without them, rules and dashboards that sum `accel_node_fault_total` would show a healthy node.
"""
RECORDED = """
alerts/recording.yaml sums over the nodes of a job, a pod and a place. [accel_node_topology_info](topology.md) has the
rack, the leaf switch and the NVLink domain of each node. In Kubernetes they come from the labels of nodes, with
`--set topology.nodeLabels=true` of the chart. Labels `rack` and `switch` of a target take precedence: set them with
`relabel_configs`, or with `relabelings` of the monitor and `attachMetadata: {node: true}`.
"""
EXPECTED = """
`--collector.faults.expected=gpu=8,rdma_port=9,nvlink=144` declares the number of working devices of the node.
DevicesMissing fires while the node has fewer, even if the device was already missing at the boot. Without the flag the
node is compared with the other nodes that have the same GPU, if there are at least three such nodes. In Kubernetes set
the flag for each pool of nodes (`config` of the chart).

Jobs also depend on services and on the clock. `accel_node_service_running{service}` (fabricmanager, imex, persistenced)
finds a service by the name of a process of a system user, in a container only if the process has CAP_SYS_ADMIN.
`gpu_processes_blocked` counts processes on GPUs that are stuck in the kernel. Both are read once a minute where
NVIDIA's driver is loaded. `accel_node_clock_synchronized` and `accel_node_clock_max_error_seconds` are read by
adjtimex(2), which changes nothing.
"""
REPORTED = """
Other programs can report faults that the exporter does not observe. With `--collector.faults.reports=FOLDER`, a file in
that folder is a fault or a maintenance of the node. The name of the file is `CATEGORY.COMPONENT`, such as
`power_supply.PSU1` or `host_maintenance.gce`. The file contains the Unix time at which the report begins; the report of
an empty file begins at the file's last change. While the file exists, it is exported as
`accel_node_report_timestamp_seconds{category,component}` and fires NodeMaintenanceAnnounced or FaultReported;
accel_node_fault_total does not count it. Only root should be able to write into the folder.

- **Maintenance that a cloud announces.** Each cloud's metadata service has its own protocol, so the exporter does not
  query them. Use a script; on Google's cloud, every minute:

  ```sh
  file=/run/node-reports/host_maintenance.gce
  at=http://metadata.google.internal/computeMetadata/v1/instance/maintenance-event
  event=$(curl -sf -m 5 -H 'Metadata-Flavor: Google' "$at") || exit 1
  if [ "$event" = NONE ]; then rm -f "$file"; elif [ ! -e "$file" ]; then date +%s >"$file"; fi
  ```

- **Sensors that only Redfish has.** The exporter queries the management controller itself by IPMI ([ipmi.md](ipmi.md)).
  Redfish needs a password and the management network: a program with this access can report sensors out of limits.
- **Failed tests.** Report `silent_data_corruption.NAME` when a test of a GPU found wrong numbers.

Memory errors are read from EDAC's counters, not from the tracepoint ras:mc_event. One kernel function
(edac_raw_mc_handle_error) updates both, and a counter includes earlier errors. For the same reason PCIe errors are read
from the AER counters of sysfs; many kernels have no ras:aer_event.
"""
SWITCHES = """
SwitchSuspected fires when formerly active links to one `switch` (the leaf of a node or device) are down on at least two
nodes, and on more than a tenth of the switch's nodes. With [Alertmanager's configuration](alerts.md) it inhibits the
alerts of the ports.
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
            ("row of the table", "count", "signals", "alerts", "not seen"), [_row(it) for it in categories.CATEGORIES]
        ),
        "## Signals",
        table(
            ("signal", "category", "event", "action"),
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
