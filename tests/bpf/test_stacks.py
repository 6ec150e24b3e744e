"""Stacks of real interpreters that allocate through C and ctypes: each byte under its line and its function."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sysconfig
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from exporter.bpf.events import Events
from exporter.stack_profiles.model import Frame, StackProfile, StackSample
from exporter.stack_profiles.published import StackProfiles
from exporter.stacks import ledger as stack_ledger
from exporter.stacks import libdw, naming, table
from tests.bpf.cuda_node import BUILD, Script, build_standins, observe
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.interpreters import interpreters
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="profiles of stacks", on="real program on a stand-in"),
]

SOURCES = Path(__file__).parent / "stacks"
JOB = SOURCES / "job.py"
FOUND = interpreters()
SITES = 23
EVERY = 10
USED = "gpu_cuda_memory_usage_bytes"
ALLOCATED = "gpu_cuda_memory_allocations_bytes_total"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the C module, without frame pointers and with its symbols."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        pytest.skip("this interpreter has no Python.h to compile a module with")
    build_standins()
    folder = tmp_path_factory.mktemp("sites")
    command = ["gcc", "-O2", "-g0", "-fPIC", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-shared"]
    command += [f"-I{headers}", SOURCES / "sites.c", "-o", folder / "sites.so", BUILD / "libcuda.so.1"]
    subprocess.run([*map(str, command)], check=True)
    return folder


observed = once(
    partial(observe, layers="driver", stack_profiles=StackProfiles(wanted=True), profile_launches_every=EVERY)
)


def is_known(observed: Observed, pid: int) -> bool:
    """Return whether the calls of a process and the frames of its interpreter are seen."""
    cuda = observed.collector
    interpreters = cuda.profiling.capture.object.maps["interpreters"]  # type: ignore[union-attr]
    return interpreters.get(pid) is not None and pid in cuda.ledger


def in_use(observed: Observed, pid: int) -> list[StackSample]:
    samples = observed.collector.node.stack_profiles.source.inuse().samples
    return [it for it in samples if it.labels.get("pid") == str(pid)]


class Job:
    """An interpreter that runs job.py with the stand-in driver."""

    def __init__(self, observed: Observed, program: Path, module: Path) -> None:
        self.observed = observed
        self.process = subprocess.Popen(
            [program, "-E", "-s", JOB, module],
            env=os.environ | {"LD_LIBRARY_PATH": str(BUILD)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def __enter__(self) -> Job:
        try:
            until(self._known, "its interpreter is known and its calls are seen")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _known(self) -> bool:
        assert self.process.poll() is None, "it ended"
        return is_known(self.observed, self.pid)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def run(self, command: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def samples(self, profile: Callable[[], StackProfile]) -> list[StackSample]:
        return [it for it in profile().samples if it.labels.get("pid") == str(self.pid)]

    def inuse(self) -> list[StackSample]:
        return in_use(self.observed, self.pid)

    def alloc(self) -> list[StackSample]:
        return self.samples(self.observed.collector.node.stack_profiles.source.alloc)


def line(text: str) -> int:
    """The number of the line of job.py that has this text."""
    [number] = [n for n, it in enumerate(JOB.read_text().splitlines(), 1) if text in it]
    return number


def python(sample: StackSample) -> list[tuple[str, int]]:
    return [(it.function.rpartition(".")[2], it.line) for it in sample.stack if it.kind == "python"]


def named(sample: StackSample, pattern: str) -> Frame | None:
    return next((it for it in sample.stack if re.fullmatch(pattern, it.function)), None)


def sums(samples: list[StackSample]) -> Mapping[str, tuple[int, int]]:
    """Bytes and objects by the C function of the module."""
    found: Counter[str] = Counter()
    objects: Counter[str] = Counter()
    for it in samples:
        frame = named(it, r"site_\d+")
        found[frame.function if frame else ""] += it.values[0]
        objects[frame.function if frame else ""] += it.values[1]
    return {name: (found[name], objects[name]) for name in found}


@pytest.mark.parametrize("version", FOUND)
def test_23_sites(observed: Observed, module: Path, version: str) -> None:
    with Job(observed, FOUND[version], module) as job:
        for site in range(SITES):
            job.run(f"layer.forward({site}, {1_000_003 + site})")
            if site % 2:
                job.run(f"layer.forward({site}, {1_000_003 + site})")
        addresses = [job.run(f"by_ctypes({7_919 + n})") for n in range(SITES)]
        samples = job.inuse()
        expected = {f"site_{n}": ((1 + n % 2) * (1_000_003 + n), 1 + n % 2) for n in range(SITES)}
        direct = SITES * 7_919 + sum(range(SITES))
        assert sums(samples) == expected | {"": (direct, SITES)}
        assert sum(it.values[0] for it in samples) == observed.value(USED, job.pid) > 0
        callback = line("key=lambda")
        for sample in samples:
            if named(sample, r"site_\d+"):
                called = python(sample)
                assert called[:2] == [("<lambda>", callback), ("forward", callback)]
                assert called[-1] == ("<module>", line("eval(line"))
                assert len(called) == 4, "eval's code is the third: that may be gone before it is read"
                natives = [it.function for it in sample.stack if it.kind == "native"]
                assert natives[0] == "cuMemAlloc_v2" and re.fullmatch(r"site_\d+", natives[1])
                assert natives[2:4] == ["allocate_at", "allocate"]
            else:
                assert python(sample)[0] == ("by_ctypes", line("assert not driver.cuMemAlloc_v2"))
            assert sample.labels["kind"] == "device"
        for address in addresses[::2]:
            job.run(f"free({address})")
        samples = job.inuse()
        left = sum(7_919 + n for n in range(1, SITES, 2))
        assert sums(samples) == expected | {"": (left, SITES // 2)}
        assert sum(it.values[0] for it in samples) == observed.value(USED, job.pid)
        allocated = job.alloc()
        assert sums(allocated) == expected | {"": (direct, SITES)}
        assert sum(it.values[0] for it in allocated) == observed.value(ALLOCATED, job.pid)


@pytest.mark.parametrize("version", FOUND)
def test_threads_generators_coroutines_and_depth(observed: Observed, module: Path, version: str) -> None:
    with Job(observed, FOUND[version], module) as job:
        job.run("[t.start() or t.join() for t in [threading.Thread(target=by_ctypes, args=(101,)) for n in range(5)]]")
        job.run("next(layer.generated(103))")
        job.run("asyncio.run(layer.awaited(107))")
        job.run("layer.deep(400, 109)")
        by_size = {it.values[0] // it.values[1]: it for it in job.inuse()}
        assert by_size.keys() == {101, 103, 107, 109}
        assert [name for name, _ in python(by_size[101])][:2] == ["by_ctypes", "run"]
        assert by_size[101].values == (505, 5)
        assert python(by_size[103])[1] == ("generated", line("yield by_ctypes"))
        assert python(by_size[107])[1] == ("awaited", line("return by_ctypes(size)"))
        deep = [name for name, _ in python(by_size[109])]
        assert deep[:1] + deep[-2:] == ["by_ctypes", "<module>", "<module>"]
        assert deep.count("deep") == (401 if deep.count("deep") > 300 else 0), (
            "or the stack of 3.10 is too long to copy"
        )


def test_pages_that_are_not_there(observed: Observed, module: Path) -> None:
    """The callers of a function with a large array that was not written to are there: a new thread has such pages."""
    with Job(observed, newest(), module) as job:
        job.run("[t.start() or t.join() for t in [threading.Thread(target=sites.allocate_deeply, args=(101,))]]")
        [sample] = job.inuse()
    names = [it.function for it in sample.stack if it.kind == "native"]
    at = names.index("in_front_of_pages")
    assert names[:2] == ["cuMemAlloc_v2", "site_0"] and names[at + 1] == "allocate_deeply"
    assert names[-1] in ("clone", "__clone3", "clone3") and naming.TRUNCATED not in sample.stack


@pytest.mark.parametrize("version", FOUND)
def test_a_frame_before_its_first_instruction(observed: Observed, module: Path, version: str) -> None:
    """A profiler is called before the function's first instruction, with the line that the function begins at."""
    with Job(observed, FOUND[version], module) as job:
        job.run("profiled(101)")
        [sample] = job.inuse()
    begins = line("def begins():")
    assert python(sample)[:4] == [
        ("by_ctypes", line("assert not driver.cuMemAlloc_v2")),
        ("profiler", line("profiler allocates")),
        ("begins", begins),
        ("profiled", line("begins()  #")),
    ]


@pytest.mark.parametrize("version", FOUND)
def test_beside_another_interpreter(observed: Observed, module: Path, version: str) -> None:
    """The main interpreter's frames are there after the process has made another one."""
    name = "_interpreters" if version >= "3.13" else "_xxsubinterpreters"
    with Job(observed, FOUND[version], module) as job:
        job.run(f"setattr(sys, 'kept', __import__({name!r}).create())")  # it ends with its last reference
        job.run("layer.deep(2, 103)")
        job.run("[t.start() or t.join() for t in [threading.Thread(target=by_ctypes, args=(107,))]]")
        by_size = {it.values[0]: [name for name, _ in python(it)] for it in job.inuse()}
    assert by_size[103][:4] == ["by_ctypes", "deep", "deep", "deep"] and by_size[103][-1] == "<module>"
    assert by_size[107][:2] == ["by_ctypes", "run"]


@pytest.mark.parametrize("version", [it for it in FOUND if it >= "3.11"])
def test_more_frames_of_python_than_are_copied(observed: Observed, module: Path, version: str) -> None:
    """The frames that are copied are in front of what called them, not behind the outermost one."""
    with Job(observed, FOUND[version], module) as job:
        job.run("sys.setrecursionlimit(2000) or layer.deep(700, 109)")
        [sample] = job.inuse()
    names = [it.function for it in sample.stack]
    [module_at] = [at for at, name in enumerate(names) if name == "by_ctypes"]
    assert {name.rpartition(".")[2] for name in names[module_at + 1 :][:500]} == {"deep"}
    assert not {"_start", "__libc_start_main"}.intersection(names[:module_at])


def newest() -> Path:
    return list(FOUND.values())[-1]


def test_memory_that_was_freed_leaves_room(observed: Observed, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of a program that has ended make room for those of others, also those of memory that it had freed."""
    ledger = observed.collector.profiling.capture.ledger  # type: ignore[union-attr]
    monkeypatch.setattr(table, "MOST_STACKS", len(ledger._table._stacks) + 40)
    monkeypatch.setattr(stack_ledger, "IN_FLIGHT", 1, raising=False)
    with Job(observed, newest(), module) as job:
        refused = ledger.refused
        job.run("[free(layer.deep(n, 100 + n)) for n in range(80)]")
        job.alloc()
        assert ledger.refused > refused
    until(lambda: job.pid not in observed.collector.ledger, "it has ended")
    with Job(observed, newest(), module) as job:
        job.run("layer.deep(90, 109)")
        [sample] = job.inuse()
        assert [name for name, _ in python(sample)].count("deep") == 91


def test_a_process_that_dies(observed: Observed, module: Path) -> None:
    with Job(observed, newest(), module) as job:
        for site in range(SITES):
            job.run(f"layer.forward({site}, 4099)")
        os.kill(job.pid, signal.SIGKILL)
        until(lambda: not job.inuse(), "nothing is in use")
        assert sums(job.alloc()) == {f"site_{n}": (4099, 1) for n in range(SITES)}


def test_a_library_without_symbols(observed: Observed, module: Path, tmp_path: Path) -> None:
    subprocess.run(["strip", "-s", "-o", tmp_path / "sites.so", module / "sites.so"], check=True)
    with Job(observed, newest(), tmp_path) as job:
        job.run("layer.forward(3, 4099)")
        [sample] = job.inuse()
        frames = [it for it in sample.stack if it.module.endswith("/sites.so")]
        offsets = [it.address for it in frames]
        table = subprocess.run(["nm", module / "sites.so"], capture_output=True, text=True, check=True).stdout
        starts = {name: int(at, 16) for at, name in re.findall(r"^([0-9a-f]+) [tT] (\w+)$", table, re.MULTILINE)}
        assert [it for it in frames if it.function in ("", "site_3", "allocate_at", "PyInit_sites")] == frames
        for name, offset in zip(("site_3", "allocate_at", "allocate"), offsets, strict=True):
            assert 0 < offset - starts[name] < 200
        notes = subprocess.run(["readelf", "-n", tmp_path / "sites.so"], capture_output=True, text=True, check=True)
        assert all(it.build_id and it.build_id in notes.stdout for it in frames)
        assert [name for name, _ in python(sample)][:2] == ["<lambda>", "forward"]


def test_frame_information_that_is_corrupt(observed: Observed, module: Path, tmp_path: Path) -> None:
    library = tmp_path / "sites.so"
    shutil.copy(module / "sites.so", library)
    listing = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True).stdout
    found = re.search(r" \.eh_frame +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", listing)
    assert found
    with library.open("r+b") as file:
        file.seek(int(found[1], 16))
        file.write(os.urandom(int(found[2], 16)))
    with Job(observed, newest(), tmp_path) as job:
        for n in range(SITES):
            job.run(f"layer.forward({n}, 4099)")
        job.run("by_ctypes(8209)")
        samples = job.inuse()
        assert sum(it.values[0] for it in samples) == SITES * 4099 + 8209
        direct = [it for it in samples if python(it)[0][0] == "by_ctypes"]
        assert sum(it.values[0] for it in direct) == 8209, "others are not affected"
        for sample in samples:
            assert [name for name, _ in python(sample)][-2:] == ["<module>", "<module>"]
            assert sample.stack[0].function == "cuMemAlloc_v2"


def launched(observed: Observed, job: Job) -> list[StackSample]:
    profile = observed.collector.node.stack_profiles.source.launches()
    assert profile.period == EVERY
    return [it for it in profile.samples if it.labels.get("pid") == str(job.pid)]


def test_launches_are_sampled_without_bias(observed: Observed, module: Path) -> None:
    """Of each block of launches on a CPU one is taken: the sum differs from the count by less than a block for each.

    Some of their stacks are dropped: there are too many at once.
    """
    with Job(observed, newest(), module) as job:
        for _ in range(50):
            job.run("sites.launch(500)")
        job.run("launch_in_threads(5, 5000)")
        samples = launched(observed, job)
        assert abs(sum(it.values[0] for it in samples) - 50_000) < EVERY * (os.cpu_count() or 1)
        assert any(it.stack for it in samples)
        assert all(it.stack[0].function == "cuLaunchKernel" and python(it) for it in samples if it.stack)


def test_a_period_in_launches_is_sampled_as_the_rest(module: Path) -> None:
    """A loop of as many launches as there are in a block: the first of each has a tenth of the samples, within four
    standard deviations of independent choices.
    """
    profiles = StackProfiles(wanted=True)
    with (
        observe(layers="driver", stack_profiles=profiles, profile_launches_every=EVERY, profile_cpu_ratio=1.0) as all_,
        Job(all_, newest(), module) as job,
    ):
        for _ in range(20):
            job.run(f"one_in({EVERY}, 100)")
            all_.collector.profiling.capture.flush(60)  # type: ignore[union-attr]
        samples = [it for it in launched(all_, job) if it.stack]
    taken = sum(it.values[0] for it in samples) // EVERY
    first = sum(it.values[0] for it in samples if python(it)[0][1] == line("# the first")) // EVERY
    assert taken > 500
    assert abs(first - taken / EVERY) < 4 * (taken * (1 / EVERY) * (1 - 1 / EVERY)) ** 0.5


def test_more_launches_than_32_bits_count(observed: Observed, module: Path) -> None:
    """The number of the next launch that is sampled has 32 bits: where the count passes them, one block is shorter or
    longer.
    """
    launches, passes = observed.collector.object.maps["launches"], 40
    with Job(observed, newest(), module) as job:
        os.sched_setaffinity(job.pid, {0})
        job.run("sites.launch(1)")
        [(key, row)] = [(key, row) for key, row in launches.items() if key.tgid == job.pid]
        before = sum(it.values[0] for it in launched(observed, job))
        for _ in range(passes):
            row.calls, row.marks = (1 << 32) - 30, (1 << 32) - 25 << 32
            launches.set(key, row)
            job.run("sites.launch(60)")
            assert launches.get(key).calls == (1 << 32) + 30
        taken = sum(it.values[0] for it in launched(observed, job)) - before
    assert abs(taken - passes * 60) <= passes * EVERY


@pytest.mark.parametrize(
    ("layers", "leaf"), [("driver", "cuGraphLaunch"), ("runtime", "cudaGraphLaunch"), ("both", "cuGraphLaunch")]
)
def test_a_launch_through_both_layers_is_one(layers: str, leaf: str) -> None:
    """Of each launch of the runtime, which makes one of the driver's, one stack is taken."""
    build_standins()
    profiles = StackProfiles(wanted=True)
    with (
        observe(layers=layers, stack_profiles=profiles, profile_launches_every=1) as observed,
        Script("libcudart.so.12") as job,
    ):
        job.run("lib.cudaDeviceSynchronize()")  # has the driver mapped
        names = {"driver": ("libcuda.so.1",), "runtime": ("libcudart.so.12",)}
        libraries = [str(BUILD / name) for name in names.get(layers, ("libcuda.so.1", "libcudart.so.12"))]
        until(lambda: observed.attached(job.pid, libraries), "its calls are seen")
        for _ in range(SITES):
            job.run("assert not lib.cudaGraphLaunch(None, None)")
        samples = [it for it in profiles.source.launches().samples if it.labels.get("pid") == str(job.pid)]
        assert SITES == sum(it.values[0] for it in samples)
        assert {leaf} == {it.stack[0].function for it in samples if it.stack}


def test_what_was_not_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile has what the kernel had sent by then, also while the threads that read it have no turn."""
    monkeypatch.setattr(Events, "start", lambda *_, **__: None)
    build_standins()
    profiles = StackProfiles(wanted=True)
    with observe(layers="driver", stack_profiles=profiles, profile_launches_every=1) as observed, Script() as job:
        until(lambda: observed.attached(job.pid, ()), "its calls are seen")
        for _ in range(SITES):
            job.run("out = lib.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)")
            job.run("new(lib.cuMemAlloc_v2, size(7919))")

        def total(profile: StackProfile) -> int:
            return sum(it.values[0] for it in profile.samples if it.labels.get("pid") == str(job.pid))

        assert SITES == total(profiles.source.launches())
        assert SITES * 7919 == total(profiles.source.alloc()) == total(profiles.source.inuse())


def test_without_libdw_the_frames_of_python_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libdw, "libraries", lambda: libdw.ctypes.CDLL("libdw-that-is-not-there.so"))
    assert "install elfutils' libdw" in libdw.missing()


INLINED = """
extern int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes);
static inline __attribute__((always_inline)) int inner(unsigned long long *address, unsigned long bytes)
{
    return cuMemAlloc_v2(address, bytes) + 1; // line 5
}
static inline __attribute__((always_inline)) int middle(unsigned long long *address, unsigned long bytes)
{
    return inner(address, bytes) + 2; // line 9
}
__attribute__((noinline)) int outer(unsigned long bytes)
{
    unsigned long long address;
    return middle(&address, bytes) + 3; // line 14
}
"""


@pytest.mark.parametrize("place", ["the file", "a cache of debuginfod"])
def test_lines_of_native_code(observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Functions that the compiler has inlined, and lines, where there is debug information for the library."""
    source, library = tmp_path / "inlined.c", tmp_path / "inlined.so"
    source.write_text(INLINED)
    build_id = uuid.uuid4().hex
    command = ["clang", "-O2", "-g", "-fPIC", "-shared", f"-Wl,--build-id=0x{build_id}", source, "-o", library]
    subprocess.run([*map(str, command), str(BUILD / "libcuda.so.1")], check=True)
    if place != "the file":
        cached = tmp_path / "cache" / build_id / "debuginfo"
        cached.parent.mkdir(parents=True)
        subprocess.run(["objcopy", "--only-keep-debug", library, cached], check=True)
        subprocess.run(["strip", library], check=True)
        monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    with Script() as script:
        until(lambda: is_known(observed, script.pid), "its interpreter is known")
        script.run(f"ctypes.CDLL({str(library)!r}).outer(c_size_t(4099))")
        [sample] = in_use(observed, script.pid)
    found = [(it.function, it.file, it.line) for it in sample.stack if it.module == str(library)]
    assert [("inner", str(source), 5), ("middle", str(source), 9), ("outer", str(source), 14)] == found


MADE = """
import mmap
made = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
start = ctypes.addressof(ctypes.c_char.from_buffer(made))
def trampoline(at, target):  # push rbp; mov rbp, rsp; movabs rax, target; call rax; pop rbp; ret
    made[at:at + 18] = b"\\x55\\x48\\x89\\xe5\\x48\\xb8" + target.to_bytes(8, "little") + b"\\xff\\xd0\\x5d\\xc3"
    return start + at
address = ctypes.cast(lib.cuMemAlloc_v2, c_void_p).value
inner = trampoline(0, address)
outer = trampoline(64, inner)
with open(f"/tmp/perf-{os.getpid()}.map", "w") as file:
    file.write(f"{start:x} 12 inner of JIT\\n{start + 64:x} 12 outer of JIT\\n")
ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_size_t)(outer)(byref(c_uint64()), 4099)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its code is made for x86-64")
def test_code_made_at_run_time(observed: Observed) -> None:
    """Functions of a just-in-time compiler have the names in its perf map, and what called them is found."""
    with Script() as script:
        until(lambda: is_known(observed, script.pid), "its interpreter is known")
        script.run(MADE)
        [sample] = in_use(observed, script.pid)
        Path(f"/tmp/perf-{script.pid}.map").unlink()
    names = [it.function for it in sample.stack if not it.module]
    assert ["inner of JIT", "outer of JIT"] == names[:2]
    assert any(it.kind == "python" for it in sample.stack)


PLUGIN = """
extern int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes);
int NAME(unsigned long bytes)
{
    unsigned long long address;
    return cuMemAlloc_v2(&address, bytes) + 1;
}
int plugin(unsigned long bytes) { return NAME(bytes) + 1; }
"""


def test_a_library_in_the_place_of_one_that_was_unloaded(observed: Observed, tmp_path: Path) -> None:
    """A library at the addresses of one that was unloaded has its own names, and both keep theirs."""
    (tmp_path / "plugin.c").write_text(PLUGIN)
    for name in ("first_function", "other_function"):
        command = ["gcc", "-O1", "-fPIC", "-shared", "-fno-optimize-sibling-calls", f"-DNAME={name}"]
        command += [tmp_path / "plugin.c", "-o", tmp_path / f"{name}.so", BUILD / "libcuda.so.1"]
        subprocess.run([*map(str, command)], check=True)
    with Script() as script:
        until(lambda: is_known(observed, script.pid), "its interpreter is known")
        script.run("import _ctypes; places = []")
        for size, name in enumerate(("first_function", "other_function", "first_function"), 4001):
            script.run(f"library = ctypes.CDLL({str(tmp_path / name)!r} + '.so')")
            script.run("places.append(ctypes.cast(library.plugin, c_void_p).value)")
            script.run(f"library.plugin(c_size_t({size}))")
            in_use(observed, script.pid)  # it is unloaded once its stack is known
            script.run("_ctypes.dlclose(library._handle)")
        script.run("assert places[0] == places[1] == places[2], 'they were loaded to different addresses'")
        found = {
            it.values: [frame.function for frame in it.stack if frame.module] for it in in_use(observed, script.pid)
        }
    assert {names[1]: values for values, names in found.items()} == {
        "first_function": (4001 + 4003, 2),
        "other_function": (4002, 1),
    }
