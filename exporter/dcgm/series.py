"""dcgm-exporter's series out of a snapshot of the GPUs: its names, types, units and labels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.dcgm.aliases import Aliases
from exporter.dcgm.csv import Row
from exporter.dcgm.derived import WINDOW_SECONDS
from exporter.dcgm.field import Field, Reading
from exporter.model import Labels, Metric, Sample
from exporter.nvml.snapshot import SLOW, DriverVersions, Gpu, Mig, Snapshot, Values

GPU_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID")
OWNER_LABELS = ("pod", "namespace", "container", "hpc_job")
HOSTNAME_LABELS = {"Hostname": ("Hostname",), "hostname": ("hostname",), "both": ("Hostname", "hostname"), "none": ()}
WINDOW_LABEL = "window_size_in_ms"
_WINDOWED = ("clock_events", "xids_in_window")

Place = tuple[str, str, str]
"""Where a value is from: the field's old name, the GPU's UUID, the id of the GPU instance or nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU, or a GPU instance: the MIG devices that share it."""

    gpu: Gpu
    migs: tuple[Mig, ...] = ()

    @property
    def instance(self) -> str:
        return str(self.migs[0].gpu_instance) if self.migs else ""


Owner = Callable[[Target], Labels]
"""Who uses a target: those of OWNER_LABELS that are known, and labels of the pod that were asked for."""


def metric(row: Row, name: str) -> Metric:
    """The metric a row that is no label stands for, under one of its names. Rows are matched to fields before."""
    split = (row.field.split,) if row.field and row.field.split else ()
    window = (WINDOW_LABEL,) if row.field and row.field.key in _WINDOWED else ()
    assert row.kind is not None
    labels = (*GPU_LABELS, *split, *window, "Hostname", "hostname", *OWNER_LABELS)
    return Metric(name, row.help, row.kind, labels=labels, literal=True)


def targets(snapshot: Snapshot) -> Iterator[Target]:
    """As dcgm-exporter has it: the GPU instances of a GPU that is divided, and the GPUs that are not."""
    for gpu in snapshot.gpus:
        instances: dict[int, list[Mig]] = {}
        for mig in gpu.identity.migs:
            instances.setdefault(mig.gpu_instance, []).append(mig)
        if instances:
            yield from (Target(gpu, tuple(migs)) for _, migs in sorted(instances.items()))
        elif gpu.uuid:
            yield Target(gpu)


class Series:
    """The series of some rows. `which` and `hostname_labels` are settings of that name, `hostname` is this node's."""

    def __init__(self, rows: Sequence[Row], which: str, hostname_labels: str, hostname: str) -> None:
        aliases = Aliases()
        filled = [(row, row.field) for row in rows if row.field is not None]
        self._metrics = [
            (field, [metric(row, name) for name in row.names(which, aliases)])
            for row, field in filled
            if row.kind is not None
        ]
        self._labels = [(field, row.names(which, aliases)) for row, field in filled if row.kind is None]
        self._hostname = dict.fromkeys(HOSTNAME_LABELS[hostname_labels], hostname)

    def samples(
        self,
        snapshot: Snapshot,
        derived: Callable[[str], Mapping[str, Reading]],
        asked: Callable[[Target], Values],
        owner: Owner,
        given: Collection[Place],
    ) -> Iterator[Sample]:
        """The samples of all that is known. `derived` gives readings by UUID, `asked` DCGM's own by the field's name,
        which count first; what is in `given` is shown by somebody else.
        """
        for target in targets(snapshot):
            readings = _readings(target.gpu, snapshot.driver, derived(target.gpu.uuid))
            own = _of_instance(target)
            labels = self._of(target, readings, own, owner)
            from_dcgm = asked(target)
            for field, metrics in self._metrics:
                if (field.name, target.gpu.uuid, target.instance) in given:
                    continue
                value: Reading | None = from_dcgm.get(field.name)
                if value is None:
                    value = _value(field, target, readings, own)
                for sample_value, more in _split(field, value):
                    yield from (it.sample(sample_value, {**labels, **more}) for it in metrics)

    def _of(self, target: Target, readings: Mapping[str, Reading], own: Values, owner: Owner) -> Labels:
        identity = target.gpu.identity
        labels = {
            "gpu": str(identity.index),
            "UUID": identity.uuid,
            "pci_bus_id": identity.pci_bus_id,
            "device": f"nvidia{identity.index}",
            "modelName": identity.name,
        }
        if target.migs:
            # The profile of a part of an instance is 1c.3g.40gb.
            labels |= {"GPU_I_PROFILE": target.migs[0].profile.rpartition("c.")[2], "GPU_I_ID": target.instance}
        for field, names in self._labels:
            text = _value(field, target, readings, own)
            if text is not None:
                labels |= dict.fromkeys(names, str(text))
        return {**owner(target), **labels, **self._hostname}


def _readings(gpu: Gpu, driver: DriverVersions | None, derived: Mapping[str, Reading]) -> dict[str, Reading]:
    """Every reading of a GPU by key; of two of one key the first set's, as in Gpu.value."""
    readings: dict[str, Reading] = {}
    if SLOW in gpu.sets:
        readings["vgpu_licensed"] = 0  # as DCGM says of GPUs that have no such licence to tell of
    for set in reversed(tuple(gpu.sets.values())):
        readings.update(set.values)
    identity = gpu.identity
    texts = {"brand": identity.brand, "serial": identity.serial, "vbios": identity.vbios}
    texts |= {f"inforom_{name}": version for name, version in identity.inforom.items()}
    if driver is not None:
        texts |= {"driver": driver.version, "nvml": driver.nvml}
    return {**readings, **texts, **derived}


def _of_instance(target: Target) -> Values:
    """The readings of a GPU instance: of the first of its MIG devices that has any, for they share them."""
    return next((own for mig in target.migs if (own := target.gpu.mig_values(mig.uuid))), {})


def _value(field: Field, target: Target, readings: Mapping[str, Reading], own: Values) -> Reading | None:
    value: Reading | None = readings.get(field.key)
    if target.migs:
        value = own.get(field.key, None if field.instance else value)
    if field.convert is not None and isinstance(value, int | float):
        return field.convert(value)
    return value


def _split(field: Field, value: Reading | None) -> Iterator[tuple[int | float, Labels]]:
    """A number as it is; a reading in parts as one sample for each, and a windowed one without any as 0."""
    window = {WINDOW_LABEL: str(WINDOW_SECONDS * 1000)} if field.key in _WINDOWED else {}
    if isinstance(value, Mapping):
        yield from ((count, {field.split: part, **window}) for part, count in value.items())
        if window and not value:
            yield 0, window
    elif isinstance(value, int | float):
        yield value, {}
