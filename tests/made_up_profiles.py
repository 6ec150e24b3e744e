"""Profiles of stacks that nobody captured, for the tests of what shows profiles."""

from __future__ import annotations

from exporter.stack_profiles.model import ALLOC, INUSE, LAUNCHES, Frame, Stack, StackProfile, StackSample, ValueType

SPACE: ValueType = ("space", "bytes")
MALLOC = Frame("cudaMalloc", module="/usr/lib/libcudart.so.12", build_id="00c0ffee", address=0x23450)
TENSOR = Frame(
    "at::empty_cuda(c10::IntArrayRef)", "EmptyTensor.cpp", 69, module="/venv/torch/lib/libtorch_cuda.so", address=0x1F30
)
NAMELESS = Frame("", module="/venv/torch/lib/libc10_cuda.so", build_id="ab12cd34", address=0x5E10)
KERNEL = Frame("do_syscall_64", kind="kernel", address=0xFFFFFFFF81000000)
LOAD = Frame("load_weights", "/app/model.py", 120, "python")
CACHE = Frame("allocate_kv_cache", "/app/engine.py", 23, "python")
MAIN = Frame("main", "/app/serve.py", 7, "python")

WEIGHTS: Stack = (MALLOC, NAMELESS, TENSOR, LOAD, MAIN)
KV_CACHE: Stack = (MALLOC, NAMELESS, TENSOR, CACHE, MAIN)
SYSCALL: Stack = (KERNEL, MALLOC)

SERVE = {
    "pid": "4711",
    "comm": "serve",
    "workload": "llm",
    "pod": "llm-0",
    "gpu_uuid": "GPU-aaaa",
    "kind": "device",
    "rank": "0",
}
TRAIN = {"pid": "815", "comm": "train", "pod": "", "gpu_uuid": "GPU-bbbb", "kind": "pool"}
HOSTILE = 'a;b\n 23\x00"</script><img src=x onerror=alert(1)>\udc80\u202e' + "x" * 100_000


def inuse(factor: int = 1) -> StackProfile:
    """Return 1,000 bytes of weights, 600 of a cache, 23 of another process, 7 of no known stack; times a factor."""
    samples = (
        StackSample(WEIGHTS, SERVE, (1000 * factor, 2)),
        StackSample(KV_CACHE, SERVE, (600 * factor, 3)),
        StackSample(SYSCALL, TRAIN, (23 * factor, 1)),
        StackSample((), TRAIN, (7 * factor, 1)),
    )
    return StackProfile(INUSE, samples, SPACE, 1, 1_700_000_000_000_000_000, 60_000_000_000, ("2 stacks were dropped",))


def hostile() -> StackProfile:
    """Return a profile with every name hostile, and a stack of 5,000 frames."""
    frame = Frame(HOSTILE, HOSTILE, 1 << 40, "python", HOSTILE, HOSTILE, (1 << 64) - 1)
    labels = dict.fromkeys(("pid", "comm", "workload", "pod", "gpu_uuid", "kind", "rank", "unknown"), HOSTILE)
    deep = tuple(Frame(f"f{depth}", "", depth, "python") for depth in range(5_000))
    samples = (StackSample((frame, frame), labels, ((1 << 62), 1)), StackSample(deep, {}, (23, 1)))
    return StackProfile(
        ((HOSTILE, HOSTILE), ("inuse_objects", "count")), samples, (HOSTILE, "bytes"), comments=(HOSTILE,)
    )


class Source:
    """A ProfileSource of these profiles, each larger than the one before; `problem_text` is its problem."""

    def __init__(self, problem_text: str = "") -> None:
        self.problem_text = problem_text
        self.calls = 0

    def inuse(self) -> StackProfile:
        self.calls += 1
        return inuse(self.calls)

    def alloc(self) -> StackProfile:
        made = self.inuse()
        return StackProfile(ALLOC, made.samples, SPACE, 1, made.time_ns, made.duration_ns)

    def launches(self) -> StackProfile:
        made = self.inuse()
        samples = tuple(StackSample(it.stack, it.labels, it.values[:1]) for it in made.samples)
        return StackProfile(LAUNCHES, samples, ("launches", "count"), 100, made.time_ns, made.duration_ns)

    def problem(self) -> str:
        return self.problem_text
