"""6. NVML: what every call of the product gives and how long it takes, GPM's ids, rights, events, and units.

As a program (`python -m tests.gpu.management`) it prints this as JSON, from a process that may hang.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pynvml  # type: ignore[import-untyped]

from exporter.nvml.child.calls import NvmlError, NvmlLibrary, NvmlTarget
from exporter.nvml.child.devices import GpuTarget, open_device
from exporter.nvml.child.events import KINDS
from exporter.nvml.child.queries import QUERIES, queries
from exporter.nvml.reading import FieldValue
from exporter.nvml.readings import GPU, GPU_BY_KEY
from exporter.nvml.snapshot import FAST, SLOW
from exporter.views.prometheus import name
from tests.gpu.machine import Machine
from tests.gpu.outcome import CANNOT, REPORTED, CannotRun, Row, equal, expect

NUMBER = 6
SHOWN = {key: reading.metric for key, reading in GPU_BY_KEY.items() if reading.metric is not None}
GPM_IDS = (*range(1, 22), 60, 61, *range(248, 261))
NOBODY = 65534
PLAUSIBLE = {"temperature_c": (1, 110), "power_mw": (5_000, 2_000_000), "memory_bytes": (1 << 30, 1 << 40)}
PLAUSIBLE |= {"utilization_percent": (0, 100), "clock_sm_mhz": (50, 5000), "pcie_width": (1, 16)}
ENERGY_AGREES = 0.5
"""Greatest relative difference between the energy counter's slope and NVML's power: a wrong unit is 1000 times off."""

CALL_AGREES = 0.01
"""Greatest relative difference of a call to the field before and after: the driver may update them at other times."""


def run(machine: Machine) -> Iterator[Row]:
    measured = machine.python("tests.gpu.management")
    yield Row(NUMBER, "GPU and driver", REPORTED, f"{measured['name']}, driver {measured['driver']}")
    for readings in (FAST, SLOW):
        values, slow = measured["values"][readings], measured["slowest"][readings]
        yield expect(NUMBER, f"readings of the {readings} set", bool(values), f"{len(values)}; slowest: {slow}")
        shown = ", ".join(f"{key} {value:.6g}" for key, value in values.items())
        yield Row(NUMBER, f"values of the {readings} set, in NVML's units", REPORTED, shown)
    nameless = sorted(key for readings in (FAST, SLOW) for key in measured["values"][readings] if key not in SHOWN)
    yield Row(NUMBER, "readings that feed other series", REPORTED, ", ".join(nameless) or "none")
    values = measured["values"][FAST]
    for key, (low, high) in PLAUSIBLE.items():
        metric = name(SHOWN[key])
        inside = low <= values.get(key, -1) <= high
        yield expect(NUMBER, f"{metric} is plausible", inside, f"{key} {values.get(key, 'absent')}, {low} to {high}")
    slope, power = measured["energy_w"], measured["power_w"]
    if slope is None or not power:
        yield Row(NUMBER, "energy agrees with power", CANNOT, "no energy counter or no power")
    else:
        agrees = abs(slope / power - 1) <= ENERGY_AGREES
        yield expect(NUMBER, "energy agrees with power", agrees, f"{slope:.1f} W by energy, {power:.1f} W reported")
    yield _fallback_row(measured["fallbacks"])
    yield Row(NUMBER, "GPM ids", REPORTED, measured["gpm"])
    yield Row(NUMBER, "event kinds", REPORTED, measured["events"])
    yield _without_root(machine)
    yield _page(machine, measured)


def _without_root(machine: Machine) -> Row:
    question = "GPM without root"
    if os.geteuid() != 0:
        return Row(NUMBER, question, CANNOT, "this is not root, so there is nothing to compare with")
    try:
        measured = machine.python("tests.gpu.management", "--without-root")
    except CannotRun as error:
        return Row(NUMBER, question, CANNOT, str(error))
    return Row(NUMBER, question, REPORTED, measured["gpm"])


def _page(machine: Machine, measured: dict[str, Any]) -> Row:
    """Every reading that has a series is on the exporter's page."""
    wanted = {name(SHOWN[key]) for readings in (FAST, SLOW) for key in measured["values"][readings] if key in SHOWN}
    with machine.exporter("--no-collector.cuda") as exporter:
        missing = sorted(wanted)

        def there() -> bool:
            names = {metric for metric, _ in exporter.scrape().series}
            missing[:] = sorted(wanted - names)
            return not missing

        try:
            exporter.until(there, "some readings are no series")
        except CannotRun:
            return equal(NUMBER, "readings without their series", "none", ", ".join(missing))
    return equal(NUMBER, "readings without their series", "none", "none")


def _fallback_row(fallbacks: dict[str, dict[str, list[float]]]) -> Row:
    question = "calls give what the fields give that they stand in for"
    same, differ = fallbacks["same"], fallbacks["differ"]
    if not same and not differ:
        return Row(NUMBER, question, CANNOT, "no reading has both a field and a call that answers here")
    answer = f"the same: {', '.join(same) or 'none'}; by calls only: {', '.join(fallbacks['calls only']) or 'none'}"
    if differ:
        answer = (
            f"{', '.join(f'{key} {call:.6g}, field {field:.6g}' for key, (call, field) in differ.items())}; {answer}"
        )
    return expect(NUMBER, question, not differ, answer)


def measure() -> dict[str, Any]:
    """Everything about the first GPU. Raises NvmlError."""
    nvml = NvmlLibrary()
    nvml.call("nvmlInit")
    device = open_device(nvml, 0)
    values, slowest = {}, {}
    for readings in (FAST, SLOW):
        values[readings], slowest[readings] = _set(nvml, device, readings)
    began, before = time.monotonic(), _energy(nvml, device)
    gpm = _gpm(nvml, device)
    time.sleep(1.0)
    after, elapsed = _energy(nvml, device), time.monotonic() - began
    power = values[FAST].get("power_mw")
    return {
        "name": device.identity.name,
        "driver": nvml.text("nvmlSystemGetDriverVersion"),
        "values": values,
        "slowest": slowest,
        "energy_w": None if before is None or after is None else (after - before) / 1000 / elapsed,
        "power_w": None if power is None else power / 1000,
        "fallbacks": _fallbacks(nvml, device),
        "gpm": gpm,
        "events": _events(nvml, device),
    }


def _set(nvml: NvmlLibrary, device: GpuTarget, readings: str) -> tuple[dict[str, int | float], str]:
    values: dict[str, int | float] = {}
    times: list[tuple[float, str]] = []
    began = time.perf_counter()
    values |= nvml.fields(device, device.requests[readings]).get(None, {})
    times.append((time.perf_counter() - began, f"{len(device.requests[readings])} fields"))
    for query in QUERIES[readings]:
        began = time.perf_counter()
        values |= nvml.read(NvmlTarget(device.handle), [query], values)
        times.append((time.perf_counter() - began, query.call.function.removeprefix("nvmlDevice")))
    worst = sorted(times, reverse=True)[:3]
    return values, ", ".join(f"{what} {seconds * 1e3:.2f} ms" for seconds, what in worst)


def _fallbacks(nvml: NvmlLibrary, device: GpuTarget) -> dict[str, dict[str, list[float]]]:
    """Readings by how their call compares with their field. Counters grow between, so a field is read on both sides."""
    compared: dict[str, dict[str, list[float]]] = {"same": {}, "differ": {}, "calls only": {}}
    for set_name in (FAST, SLOW):
        both = [
            replace(reading, source=reading.fallback, fallback=None)
            for reading in GPU[set_name]
            if isinstance(reading.source, FieldValue) and reading.fallback is not None
        ]
        before = nvml.fields(NvmlTarget(device.handle), device.requests[set_name]).get(None, {})
        called = nvml.read(NvmlTarget(device.handle), queries(both))
        after = nvml.fields(NvmlTarget(device.handle), device.requests[set_name]).get(None, {})
        for key, value in called.items():
            if key not in before or key not in after:
                compared["calls only"][key] = [value]
            else:
                same = before[key] * (1 - CALL_AGREES) <= value <= after[key] * (1 + CALL_AGREES)
                compared["same" if same else "differ"][key] = [value, before[key]]
    return compared


def _energy(nvml: NvmlLibrary, device: GpuTarget) -> int | float | None:
    wanted = [it for it in device.requests[FAST] if it.key == "energy_mj"]
    return nvml.fields(device, wanted).get(None, {}).get("energy_mj")


def _gpm(nvml: NvmlLibrary, device: GpuTarget) -> str:
    """Return the GPM ids that give a number between two samples, one request each, or the reason for none."""
    try:
        if not nvml.call("nvmlGpmQueryDeviceSupport", device.handle).isSupportedDevice:
            return "not supported by this GPU"
        samples = [nvml.call("nvmlGpmSampleAlloc") for _ in range(2)]
        nvml.call("nvmlGpmSampleGet", device.handle, samples[0])
        time.sleep(0.5)
        nvml.call("nvmlGpmSampleGet", device.handle, samples[1])
    except NvmlError as error:
        return str(error)
    answers = []
    for gpm_id in GPM_IDS:
        question = pynvml.c_nvmlGpmMetricsGet_t()
        question.version, question.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
        question.sample1, question.sample2 = samples
        question.metrics[0].metricId = gpm_id
        try:
            nvml.call("nvmlGpmMetricsGet", question)
            code = question.metrics[0].nvmlReturn
        except NvmlError as error:
            code = error.code
        answers.append(f"{gpm_id}: {question.metrics[0].value:.4g}" if code == 0 else f"{gpm_id}: error {code}")
    for sample in samples:
        nvml.optional("nvmlGpmSampleFree", sample)
    return ", ".join(answers)


def _events(nvml: NvmlLibrary, device: GpuTarget) -> str:
    supported = nvml.optional("nvmlDeviceGetSupportedEventTypes", device.handle)
    if supported is None:
        return "none"
    return ", ".join(kind for bit, kind in KINDS.items() if supported & bit) + f" of {supported:#x}"


if __name__ == "__main__":
    if "--without-root" in sys.argv:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        print(json.dumps(measure()))
    except NvmlError as error:
        raise SystemExit(str(error)) from error
