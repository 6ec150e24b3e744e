"""Two agents of NVIDIA's NIXL in two processes, for tests: the libraries of its wheel, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bpf.cuda_node import Script
from tests.bpf.observed import Observed
from tests.support import until

NOWHERE = Path("/nonexistent")
BINDINGS = """
import importlib.util
def agent(bindings, name, bytes):
    global nixl, me, backend, memory, mine
    os.environ.update(UCX_TLS='tcp,self,sm', UCX_LOG_LEVEL='fatal', NIXL_LOG_LEVEL='FATAL')
    spec = importlib.util.spec_from_file_location('nixl._bindings', bindings)
    nixl = importlib.util.module_from_spec(spec); spec.loader.exec_module(nixl)
    try:
        config = nixl.nixlAgentConfig()
        config.useProgThread = config.captureTelemetry = True
    except TypeError:  # of older ones: progress thread, listener, port, synchronisation, threads, delays, telemetry
        config = nixl.nixlAgentConfig(True, False, 0, nixl.NIXL_THREAD_SYNC_NONE, 1, 0, 100000, True)
    me = nixl.nixlAgent(name, config)
    backend = me.createBackend('UCX', me.getPluginParams('UCX')[0])
    memory = ctypes.create_string_buffer(bytes)
    mine = ctypes.addressof(memory)
    whole = nixl.nixlRegDList(nixl.DRAM_SEG); whole.addDesc((mine, bytes, 0, ''))
    me.registerMem(whole, [backend])
def parts(at, count, length):
    some = nixl.nixlXferDList(nixl.DRAM_SEG)
    for i in range(count): some.addDesc((at + 2 * i * length, length, 0))
    return some
def wait(handle, status):
    while status == nixl.NIXL_IN_PROG: status = me.getXferStatus(handle)
    assert status == nixl.NIXL_SUCCESS, status
    telemetry.append(me.getXferTelemetry(handle).totalBytes)
def prepared(operation, to, count, length, indices):
    own, other = (me.prepXferDlist(name, parts(at, count, length), [backend]) for name, at in
                  (('', mine), ('target', to)))
    return me.makeXferReq(operation, own, indices, other, indices, '', [backend], False)
telemetry = []
"""


def bindings(folder: Path) -> Path:
    return next(folder.rglob("_bindings.*.so"))


def libnixl(folder: Path) -> Path:
    return next(folder.rglob("libnixl.so"))


def ucx_plugin(folder: Path) -> Path:
    return next(it for it in folder.rglob("libplugin_UCX.so") if it.parent.name == "plugins")


@contextmanager
def initiator_and_target(
    observed: Observed, folder: Path, probed: Path, size: int = 1 << 22
) -> Iterator[tuple[Script, Script]]:
    """Two processes with an agent each, over TCP and shared memory; the first knows the second as `target`.

    They are given once `probed`, a library that an agent opens late, has its probes.
    """
    with Script(libnixl(folder), libraries=NOWHERE) as initiator, Script(libnixl(folder), libraries=NOWHERE) as target:
        for name, job in (("initiator", initiator), ("target", target)):
            job.run(f"{BINDINGS}\nagent({str(bindings(folder))!r}, {name!r}, {size})")
        metadata, address = target.run("out = me.getLocalMD().hex(), mine")
        initiator.run(f"me.loadRemoteMD(bytes.fromhex({metadata!r})); remote = {address}")
        for job in (initiator, target):
            until(lambda job=job: observed.attached(job.pid, {str(probed)}), "its probes")  # type: ignore[misc]
        yield initiator, target
