"""Series of dcgm-exporter from a snapshot of the GPUs, with dcgm-exporter's names, types, units and labels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from exporter.compat.dcgm.aliases import Aliases
from exporter.compat.dcgm.csv import FieldRow
from exporter.compat.dcgm.derived import WINDOW_SECONDS
from exporter.compat.dcgm.field import Field, Reading
from exporter.model import Labels, Metric, Sample
from exporter.nvml.snapshot import SLOW, DriverVersions, Gpu, GpuSnapshot, Mig, Values

GPU_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID")
OWNER_LABELS = ("pod", "namespace", "container", "hpc_job")
HOSTNAME_LABELS = {"Hostname": ("Hostname",), "hostname": ("hostname",), "both": ("Hostname", "hostname"), "none": ()}
WINDOW_LABEL = "window_size_in_ms"
MOST_NAMES = 20
"""Labels of a series at most. Beyond that, labels of pods are omitted, the last ones first, then rows of type label."""
_OF_READINGS = 2
"""Labels that a reading may have in addition: its part and window. All series of a GPU have the same other labels."""
_WINDOWED = ("clock_events", "xids_in_window")

EntityField = tuple[str, str, str]
"""A field of an entity: the field's old name, the GPU's UUID, and the id of the GPU instance or an empty string."""


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity of DCGM: a GPU, or a GPU instance with its MIG devices."""

    gpu: Gpu
    migs: tuple[Mig, ...] = ()

    @property
    def instance(self) -> str:
        return str(self.migs[0].gpu_instance) if self.migs else ""


Owner = Callable[[Entity], Labels]
"""Function from an entity to the known ones of OWNER_LABELS, and to requested labels of the pod."""


def metric(row: FieldRow, name: str) -> Metric:
    """Returns the metric of a row that is no label, under one of its names."""
    split = (row.field.split,) if row.field and row.field.split else ()
    window = (WINDOW_LABEL,) if row.field and row.field.key in _WINDOWED else ()
    assert row.kind is not None
    labels = (*GPU_LABELS, *split, *window, "Hostname", "hostname", *OWNER_LABELS)
    return Metric(name, row.help, row.kind, labels=labels, literal=True)


def entities(snapshot: GpuSnapshot) -> Iterator[Entity]:
    """Yields the entities that dcgm-exporter shows: instances of GPUs with MIG, and GPUs without."""
    for gpu in snapshot.gpus:
        instances: dict[int, list[Mig]] = {}
        for mig in gpu.identity.migs:
            instances.setdefault(mig.gpu_instance, []).append(mig)
        if instances:
            yield from (Entity(gpu, tuple(migs)) for _, migs in sorted(instances.items()))
        elif gpu.uuid:
            yield Entity(gpu)


class DcgmSeries:
    """Series of rows. `which` is compat.dcgm.names, `hostname_labels` compat.hostname-label, `hostname` this node."""

    def __init__(self, rows: Sequence[FieldRow], which: str, hostname_labels: str, hostname: str) -> None:
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
        snapshot: GpuSnapshot,
        derived: Callable[[str], Mapping[str, Reading]],
        profiling: Callable[[Entity], Values],
        owner: Owner,
        passed_through: Collection[EntityField],
    ) -> Iterator[Sample]:
        """Yields the samples of all known readings.

        `derived` returns readings of a UUID. `profiling` returns DCGM's own values by field name; they have precedence.
        Fields in `passed_through` are left out, because a dcgm-exporter shows them.
        """
        for entity in entities(snapshot):
            readings = _readings(entity.gpu, snapshot.driver, derived(entity.gpu.uuid))
            own = _of_instance(entity)
            labels = self._of(entity, readings, own, owner)
            from_dcgm = profiling(entity)
            for field, metrics in self._metrics:
                if (field.name, entity.gpu.uuid, entity.instance) in passed_through:
                    continue
                value: Reading | None = from_dcgm.get(field.name)
                if value is None:
                    value = _value(field, entity, readings, own)
                for sample_value, more in _split(field, value):
                    yield from (metric.sample(sample_value, {**labels, **more}) for metric in metrics)

    def _of(self, entity: Entity, readings: Mapping[str, Reading], own: Values, owner: Owner) -> Labels:
        identity = entity.gpu.identity
        labels = {
            "gpu": str(identity.index),
            "UUID": identity.uuid,
            "pci_bus_id": identity.pci_bus_id,
            "device": f"nvidia{identity.index}",
            "modelName": identity.name,
        }
        if entity.migs:
            # The profile of a part of an instance is 1c.3g.40gb.
            labels |= {"GPU_I_PROFILE": entity.migs[0].profile.rpartition("c.")[2], "GPU_I_ID": entity.instance}
        labels |= self._hostname
        known = owner(entity)
        labels = {name: text for name, text in known.items() if name in OWNER_LABELS} | labels
        rows: dict[str, str] = {}
        for field, names in self._labels:
            text = _value(field, entity, readings, own)
            if text is not None:
                rows |= dict.fromkeys(names, str(text))
        return bounded(
            labels, {**rows, **{name: text for name, text in known.items() if name not in rows}}, _OF_READINGS
        )


def bounded(labels: Labels, more: Labels, reserved: int = 0) -> Labels:
    """Return `labels` with the first labels of `more` that they lack, at most MOST_NAMES minus `reserved` in all."""
    others = ((name, text) for name, text in more.items() if name not in labels)
    return {**labels, **dict(islice(others, max(0, MOST_NAMES - reserved - len(labels))))}


def _readings(gpu: Gpu, driver: DriverVersions | None, derived: Mapping[str, Reading]) -> dict[str, Reading]:
    """Returns every reading of a GPU by key; of two readings with one key that of the first set, as in Gpu.value."""
    readings: dict[str, Reading] = {}
    if SLOW in gpu.sets:
        readings["vgpu_licensed"] = 0  # as DCGM reports for GPUs without a licence
    for of_set in reversed(tuple(gpu.sets.values())):
        readings.update(of_set.values)
    identity = gpu.identity
    texts = {"brand": identity.brand, "serial": identity.serial, "vbios": identity.vbios}
    texts |= {f"inforom_{name}": version for name, version in identity.inforom.items()}
    if driver is not None:
        texts |= {"driver": driver.version, "nvml": driver.nvml}
    return {**readings, **texts, **derived}


def _of_instance(entity: Entity) -> Values:
    """Returns the readings of a GPU instance: its MIG devices share them, so those of the first that has any."""
    return next((own for mig in entity.migs if (own := entity.gpu.mig_values(mig.uuid))), {})


def _value(field: Field, entity: Entity, readings: Mapping[str, Reading], own: Values) -> Reading | None:
    value: Reading | None = readings.get(field.key)
    if entity.migs:
        value = own.get(field.key, None if field.instance else value)
    if field.convert is not None and isinstance(value, int | float):
        return field.convert(value)
    return value


def _split(field: Field, value: Reading | None) -> Iterator[tuple[int | float, Labels]]:
    """Yields value and labels: of a number, of each part of a reading with parts, and 0 for a window without parts."""
    window = {WINDOW_LABEL: str(WINDOW_SECONDS * 1000)} if field.key in _WINDOWED else {}
    if isinstance(value, Mapping):
        yield from ((count, {field.split: part, **window}) for part, count in value.items())
        if window and not value:
            yield 0, window
    elif isinstance(value, int | float):
        yield value, {}
