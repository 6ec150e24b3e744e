"""The samples of a process, and those left out because they are not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporter.ledger import Process
from exporter.model import Sample
from exporter.nccl.activity import Activity, Calls, Communicator, Durations, Errors
from exporter.nccl.codes import data_type, result
from exporter.nccl.functions import FUNCTIONS
from exporter.nccl.samples import MOST, Kinds, samples
from exporter.views.prometheus import name

KINDS = Kinds({0: "Broadcast", 1: "Signal", 2: "GroupEnd", 3: "Init"}, group_end=2, none=4)


def shown(activity: Activity, returns: bool = True) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    process = Process(7, {"pid": "7"}, activity, 5.0)
    for sample in samples(process, KINDS, lambda ns: ns + 1_000_000_000, returns):
        assert {"pid", *sample.metric.labels} >= sample.labels.keys()
        assert "7" == sample.labels["pid"] and 5.0 == sample.start
        found.setdefault(name(sample.metric), []).append(sample)
    return found


def only(found: Mapping[str, list[Sample]], metric: str) -> Any:
    [sample] = found[metric]
    return sample.value


def test_calls() -> None:
    """Calls, bytes and bus bytes by collective; groups by themselves; the newest of all."""
    calls = Calls(23, 400, 300, 0, 0, 2_000_000_000)
    found = shown(Activity(calls={0: calls, 2: Calls(5, 0, 0, 0, 0, 3_000_000_000)}))
    assert (23, 400, 300) == tuple(only(found, f"nccl_collective_{it}_total") for it in ("calls", "bytes", "bus_bytes"))
    assert (5, 4.0) == (only(found, "nccl_groups_total"), only(found, "nccl_last_call_timestamp_seconds"))
    assert {"nccl_calls_in_flight"} == {it for it in found if "in_flight" in it}


def test_what_is_not_known_is_left_out() -> None:
    """Without sizes no bytes, without communicators no bus bytes, without return probes nothing in flight."""
    sized = shown(Activity(calls={0: Calls(2, 40, 0, 0, 2, 1)}), returns=False)
    assert 40 == only(sized, "nccl_collective_bytes_total")
    assert 2 == only(sized, "nccl_collective_anonymous_calls_total")
    assert {"nccl_collective_bus_bytes_total", "nccl_calls_in_flight"}.isdisjoint(sized)
    partly = shown(Activity(calls={0: Calls(5, 100, 60, 0, 2, 1)}))
    assert 100 == only(partly, "nccl_collective_bytes_total")
    assert "nccl_collective_bus_bytes_total" not in partly
    unsized = shown(Activity(calls={0: Calls(2, 0, 0, 2, 0, 1)}))
    assert 2 == only(unsized, "nccl_collective_unsized_calls_total")
    assert "nccl_collective_bytes_total" not in unsized
    assert "nccl_collective_bytes_total" not in shown(Activity(calls={1: Calls(2, 0, 0, 0, 0, 1)}))


def test_an_unknown_number_of_calls() -> None:
    """No counter, but the time of the newest one: a process that sends is not one that hangs."""
    found = shown(Activity(calls={0: Calls(0, 0, 0, 0, 0, 2_000_000_000)}), returns=False)
    assert {"nccl_last_call_timestamp_seconds"} == found.keys()
    assert 3.0 == only(found, "nccl_last_call_timestamp_seconds")


def test_more_than_fits() -> None:
    """Numbers made up by a library are cut to the range of OTLP."""
    found = shown(Activity(calls={0: Calls(1, (1 << 64) - 1, (1 << 64) - 1, 0, 0, 1)}))
    assert MOST == only(found, "nccl_collective_bytes_total") == only(found, "nccl_collective_bus_bytes_total")


def test_times_errors_and_communicators() -> None:
    """Times go to collectives or operations, errors have names, equal communicators are one series."""
    slots = (1,) + (0,) * 29
    api = 1 + next(i for i, it in enumerate(FUNCTIONS) if it.name == "ncclCommInitRank")
    activity = Activity(
        durations={2: Durations(500, slots), 3: Durations(700, slots)},
        errors={(api, 6): Errors(2, 0), (api, 99): Errors(1, 0)},
        communicators={Communicator(0xABC, 1, 8, 3), Communicator(0xABC, 1, 8, 3)},
        in_flight=2,
    )
    found = shown(activity)
    assert "GroupEnd" == found["nccl_enqueue_seconds"][0].labels["collective"]
    assert "Init" == found["nccl_communicator_operation_seconds"][0].labels["operation"]
    assert 5e-7 == only(found, "nccl_enqueue_seconds").sum
    errors = {(it.labels["api"], it.labels["code"], it.labels["error"]) for it in found["nccl_errors_total"]}
    assert {("ncclCommInitRank", "6", "ncclRemoteError"), ("ncclCommInitRank", "99", "")} == errors
    [info] = found["nccl_communicator_info"]
    expected = {"pid": "7", "comm_hash": "0000000000000abc", "rank": "1", "nranks": "8", "cuda_device": "3"}
    assert expected == info.labels
    assert 2 == only(found, "nccl_calls_in_flight")


def test_the_end_and_what_came_late() -> None:
    """At its end a process is in no communicator and in no call; what came after that is added."""
    activity = Activity(calls={0: Calls(3, 30, 20, 1, 0, 9)}, communicators={Communicator(1, 0, 2, 0)}, in_flight=1)
    activity.ended()
    late = Activity(
        calls={0: Calls(2, 20, 10, 0, 1, 7), 2: Calls(1, 0, 0, 0, 0, 8)},
        errors={(1, 3): Errors(1, 5)},
        durations={0: Durations(10, (1, 0))},
    )
    activity.absorb(late)
    activity.absorb(Activity(errors={(1, 3): Errors(1, 4)}, durations={0: Durations(5, (0, 1))}))
    assert {0: Calls(5, 50, 30, 1, 1, 9), 2: Calls(1, 0, 0, 0, 0, 8)} == activity.calls
    assert {(1, 3): Errors(2, 5)} == activity.errors
    assert {0: Durations(15, (1, 1))} == activity.durations
    assert (set(), 0) == (activity.communicators, activity.in_flight)


def test_numbers_of_nccl_h() -> None:
    """Codes and types have the names of nccl.h; others have none."""
    assert ("ncclSuccess", "ncclInProgress", "", "") == (result(0), result(7), result(9), result(-1))
    assert ("int8", "float32", "float8e5m2", "", "") == (*map(data_type, (0, 7, 11)), data_type(12), data_type(-1))
