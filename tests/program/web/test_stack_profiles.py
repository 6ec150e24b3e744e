"""Requests for profiles of stacks over real sockets."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import pytest

from exporter.options import SettingsError
from exporter.server import WebSettings
from exporter.stack_profiles.frozen import FailedAllocation, FreeMemory
from exporter.stack_profiles.growth import Growth
from exporter.stack_profiles.hangs import TYPES, Standing
from exporter.stack_profiles.model import StackProfile, StackSample
from exporter.stack_profiles.published import NOBODY, StackProfiles
from exporter.web import stack_profiles
from tests import made_up_profiles as made_up
from tests import profile_readers as readers
from tests.standins.served import Served
from tests.support import PATIENCE, until

FAILED = FailedAllocation(made_up.WEIGHTS, made_up.SERVE, 4096, FreeMemory(512, 3.25, "NVML"), "cuMemAlloc_v2")


@pytest.fixture
def published() -> StackProfiles:
    made = StackProfiles()
    made.publish(made_up.Source())
    return made


@pytest.fixture
def served(published: StackProfiles) -> Iterator[Served]:
    with Served([], profiles=published, growth=Growth(published, 600), enable_profiles=True) as running:
        yield running


@pytest.mark.parametrize("path", stack_profiles.PATHS)
def test_off_unless_enabled(published: StackProfiles, path: str) -> None:
    """Without the flag each of them is a 404 with the flag's name, and no source is called."""
    with Served([], profiles=published) as served:
        answer = served.get(path)

    assert (404, 0) == (answer.status, getattr(published.source, "calls", None))
    assert "--web.enable-profiles" in answer.text


@pytest.mark.parametrize("name", ["gpu_inuse", "gpu_alloc", "gpu_launches", "gpu_oom", "gpu_hang"])
def test_without_profiles_there_is_the_reason(name: str) -> None:
    """If nothing captures stacks, or the source has a problem, the answer is a 503 with the reason."""
    published = StackProfiles()
    with Served([], profiles=published, enable_profiles=True) as served:
        nobody = served.get(f"/debug/pprof/{name}")
        published.publish(made_up.Source("libdw.so.1 is not installed"))
        problem = served.get(f"/debug/pprof/{name}")

    assert (503, f"there is no profile: {NOBODY}\n") == (nobody.status, nobody.text)
    assert (503, "there is no profile: libdw.so.1 is not installed\n") == (problem.status, problem.text)


def test_pprof_is_served(served: Served) -> None:
    """A profile is a gzip file of profile.proto, without a content encoding that clients would undo."""
    answer = served.get("/debug/pprof/gpu_inuse")

    assert (200, "application/octet-stream") == (answer.status, answer.headers["content-type"])
    assert "content-encoding" not in answer.headers
    assert 'filename="gpu_inuse.pb.gz"' in answer.headers["content-disposition"]
    assert b"allocate_kv_cache" in gzip.decompress(answer.body)
    assert b"launches" in gzip.decompress(served.get("/debug/pprof/gpu_launches").body)
    assert b"alloc_space" in gzip.decompress(served.get("/debug/pprof/gpu_alloc").body)


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ("", 1630),
        ("&pid=815", 30),
        ("&pod=llm-0", 1600),
        ("&gpu_uuid=GPU-bbbb", 30),
        ("&gpu_uuid=GPU-bbbb&pid=4711", 0),
        ("&value=inuse_objects", 7),
    ],
)
def test_filters(served: Served, query: str, total: int) -> None:
    """A filter leaves what has that label; several hold together."""
    rows = json.loads(served.get(f"/debug/pprof/gpu_inuse?format=rows{query}").text)

    assert total == rows[0]["value"] == sum(row["self"] for row in rows)


def test_formats(served: Served) -> None:
    """The other formats of a profile, compressed on the way to who takes that."""
    collapsed = served.get("/debug/pprof/gpu_inuse?format=collapsed&by=gpu")
    speedscope = served.get("/debug/pprof/gpu_inuse?format=speedscope")
    document = served.get("/debug/pprof/gpu_inuse?format=json", Accept_Encoding="gzip")

    assert collapsed.text.startswith("GPU-aaaa;main (serve.py:7);")
    assert "gpu_inuse of " in json.loads(speedscope.text)["name"]
    assert "gzip" == document.headers["content-encoding"]
    assert [["inuse_space", "bytes"], ["inuse_objects", "count"]] == json.loads(gzip.decompress(document.body))["types"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("gpu_inuse?seconds=0", "seconds has to be a whole number from 1 to 300"),
        ("gpu_inuse?seconds=301", "seconds has to be a whole number from 1 to 300"),
        ("gpu_inuse?seconds=1.5", "seconds has to be a whole number from 1 to 300"),
        ("gpu_inuse?seconds=", "seconds has to be a whole number from 1 to 300"),
        ("gpu_inuse?n=1", "there is no parameter 'n'"),
        ("gpu_oom?seconds=1", "there is no parameter 'seconds'"),
        ("gpu_oom?n=x", "n has to be a whole number"),
        ("gpu_inuse?pid=1&pid=2", "pid is given more than once"),
        ("gpu_inuse?pid=-1", "pid has to be a number"),
        ("gpu_inuse?pod=", "pod has to be 1 to 512 characters"),
        ("gpu_inuse?gpu_uuid=" + "x" * 513, "gpu_uuid has to be 1 to 512 characters"),
        ("gpu_inuse?format=svg", "format has to be one of pprof, collapsed, speedscope, rows, json"),
        ("gpu_launches?value=inuse_space", "value has to be one of launches"),
        ("gpu_inuse?by=user", "by has to be one of process, gpu, workload, pod, kind, rank"),
        ("gpu_inuse?second=5", "there is no parameter 'second'; there are seconds, format"),
    ],
)
def test_wrong_parameters(served: Served, published: StackProfiles, path: str, reason: str) -> None:
    """A wrong parameter is a 400 with one sentence, and no source is called for it."""
    answer = served.get(f"/debug/pprof/{path}")

    assert (400, 1, 0) == (answer.status, answer.text.count("\n"), getattr(published.source, "calls", None))
    assert reason in answer.text


def test_a_delta(served: Served) -> None:
    """With seconds it is what changed in between: the source's second profile has twice the values of its first."""
    started = time.monotonic()
    document = json.loads(served.get("/debug/pprof/gpu_inuse?seconds=1&format=json").text)

    assert time.monotonic() - started >= 1
    assert 1630 == sum(values[0] for _, _, values in document["samples"])
    assert [0, 0] == [min(values[1] for _, _, values in document["samples"]), document["duration"]]


def test_waiting_requests_are_bounded(served: Served) -> None:
    """Four requests of a peer wait, a fifth is a 503; a place is free once a client has left."""
    with ExitStack() as waiting:
        for _ in range(4):
            client = waiting.enter_context(socket.create_connection(("127.0.0.1", served.port), PATIENCE))
            client.sendall(b"GET /debug/pprof/gpu_inuse?seconds=300 HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: len(served.server.profiles.slots) == 4, "all of them wait")
        assert 503 == served.get("/debug/pprof/gpu_inuse").status
        assert "at the limit of 8 requests for profiles" in served.get("/flamegraph").text
        assert 200 == served.get("/metrics").status
    until(lambda: served.get("/debug/pprof/gpu_inuse").status == 200, "a place is free")


def test_frozen_profiles(served: Served, published: StackProfiles) -> None:
    """The newest without a number; with the failed request beside what was in use; a 404 for one that is not there."""
    assert 404 == served.get("/debug/pprof/gpu_oom").status
    for factor in (1, 2):
        published.frozen.freeze(made_up.inuse(factor), FAILED, factor * 10**18)
    newest = json.loads(served.get("/debug/pprof/gpu_oom?format=json").text)
    first = json.loads(served.get("/debug/pprof/gpu_oom?n=1&format=rows&value=failed_space").text)
    missing = served.get("/debug/pprof/gpu_oom?n=3")
    listed = json.loads(served.get("/api/failed-allocations").text)

    totals = [sum(values[at] for _, _, values in newest["samples"]) for at in range(4)]
    assert [3260, 7, 4096, 1] == totals
    assert (
        "failed: cuMemAlloc_v2 of 4096 bytes, 512 bytes of the GPU were free 3.2 s before (NVML)" in newest["comments"]
    )
    assert (4096, "main (serve.py:7)") == (first[0]["value"], first[1]["label"])
    assert (404, "there is no such profile: there are 2, 1\n") == (missing.status, missing.text)
    free = {"bytes": 512, "seconds": 3.25, "source": "NVML"}
    assert [(2, 3260, 4096, free, "4711"), (1, 1630, 4096, free, "4711")] == [
        (it["n"], it["in_use"], it["size"], it["free"], it["labels"]["pid"]) for it in listed
    ]


def test_hangs(served: Served, published: StackProfiles) -> None:
    """The newest without a number, with its threads; a 404 where nothing has hung."""
    none = served.get("/debug/pprof/gpu_hang")
    threads = tuple(StackSample(made_up.WEIGHTS, {"pid": "4711", "rank": rank}, (1,)) for rank in ("0", "1", "1"))
    profile = StackProfile(TYPES, threads, TYPES[0])
    published.hangs.add(profile, made_up.SERVE, Standing(4711, 10**9, "ncclAllReduce"), 301 * 10**9, 10**18)

    assert (404, "there is no such profile: nothing has hung since the start\n") == (none.status, none.text)
    found = json.loads(served.get("/debug/pprof/gpu_hang?format=json").text)
    assert 3 == sum(values[0] for _, _, values in found["samples"])
    by_rank = served.get("/debug/pprof/gpu_hang?n=1&format=collapsed&by=rank").text
    assert {"1", "2"} == {line.rpartition(" ")[2] for line in by_rank.splitlines()}
    [listed] = json.loads(served.get("/api/hangs").text)
    assert (1, "ncclAllReduce", 300.0, 1, 3) == tuple(
        listed[it] for it in ("n", "call", "seconds", "processes", "threads")
    )
    assert 404 == served.get("/debug/pprof/gpu_hang?n=2").status


def test_the_page_has_one_script_that_its_policy_names(served: Served) -> None:
    """The policy allows the script by its hash alone, no other source, and requests to this server only."""
    answer = served.get("/flamegraph")
    policy = answer.headers["content-security-policy"]

    assert (200, "text/html; charset=utf-8") == (answer.status, answer.headers["content-type"])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert 1 == answer.text.count("<script")
    assert "http://" not in answer.text
    assert "https://" not in answer.text


@pytest.mark.parametrize("path", stack_profiles.PATHS)
def test_paths_are_taken(path: str) -> None:
    """The metrics cannot be served where profiles are."""
    with pytest.raises(SettingsError, match="is no path to serve on"):
        WebSettings(telemetry_path=path)


def test_users_hold_for_profiles(published: StackProfiles, tmp_path: Path) -> None:
    """With users in the web configuration file each path wants a password, before anything else is looked at."""
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users:\n  anna: {hashed}\n")
    right = "Basic " + base64.b64encode(b"anna:right").decode()
    with Served([], profiles=published, enable_profiles=True, config_file=str(file)) as served:
        refused = {path: served.get(path).status for path in stack_profiles.PATHS}
        allowed = served.get("/debug/pprof/gpu_inuse", Authorization=right).status

    assert {401} == set(refused.values())
    assert 200 == allowed


def test_a_source_that_hangs_is_no_profile(published: StackProfiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request does not wait for ever, and /metrics not at all."""
    monkeypatch.setattr(stack_profiles, "WORK_SECONDS", 0.5)
    gate = threading.Event()

    class Hanging(made_up.Source):
        def inuse(self) -> StackProfile:
            gate.wait(PATIENCE)
            return super().inuse()

    published.publish(Hanging())
    with Served([], profiles=published, enable_profiles=True) as served:
        answer = served.get("/debug/pprof/gpu_inuse")
        metrics = served.get().status
        gate.set()

    assert (503, "there is no profile: it takes longer than 0 s\n") == (answer.status, answer.text)
    assert 200 == metrics


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("options", "profiles"), [((), 1), (("-seconds=1",), 2)], ids=["now", "delta"])
def test_go_fetches_it(
    served: Served, published: StackProfiles, tmp_path: Path, options: tuple[str, ...], profiles: int
) -> None:
    """Go's pprof fetches a profile by its address, with frames that have no name, also a delta, which is the second
    profile less the first.
    """
    assert any(made_up.NAMELESS in it.stack for it in made_up.inuse().samples)
    environ = {"PPROF_TMPDIR": str(tmp_path), "PATH": ""}
    url = f"http://127.0.0.1:{served.port}/debug/pprof/gpu_inuse"
    command = [readers.go_pprof(), "-top", "-unit=B", *options, url]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)

    assert "of 1630B total" in done.stdout
    assert profiles == getattr(published.source, "calls", None)
