"""NVIDIA's Python bindings for DCGM without DCGM: the calls that the exporter makes, answered from a JSON file.

DCGM_STANDIN names the file: {"gpus": [{"uuid": "GPU-0", "values": {"1004": 0.2, "1005": null}}]}, null being a blank.
A GPU may have "fields", those that it has profiling for: all by default. "hang", "crash" and "raise" name
a call that never returns, kills the process or raises. Calls are written to the file of that name with ".calls"
added. Names and signatures are those of the bindings that DCGM 4.5 comes with.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_FILE = Path(os.environ["DCGM_STANDIN"])


class DCGMError(Exception):
    """As dcgm_structs.DCGMError."""


def _scenario(call: str, *arguments: object) -> dict[str, Any]:
    with Path(f"{_FILE}.calls").open("a") as log:
        log.write(json.dumps([call, *arguments]) + "\n")
    scenario: dict[str, Any] = json.loads(_FILE.read_text())
    if scenario.get("hang") == call:
        time.sleep(3600)
    if scenario.get("crash") == call:
        os.abort()
    if scenario.get("raise") == call:
        raise DCGMError("Host engine connection invalid/disconnected")
    return scenario


class DcgmHandle:
    def __init__(
        self,
        handle: object = None,
        ipAddress: str | None = None,
        opMode: int = 1,
        persistAfterDisconnect: bool = False,
        unixSocketPath: str | None = None,
        timeoutMs: int = 0,
    ) -> None:
        self.handle = 1
        _scenario("DcgmHandle", ipAddress, opMode)

    def GetSystem(self) -> DcgmSystem:
        return DcgmSystem()

    def Shutdown(self) -> None:
        _scenario("Shutdown")


class DcgmSystem:
    def __init__(self) -> None:
        self.discovery = DcgmSystemDiscovery()

    def GetGroupWithGpuIds(self, groupName: str, gpuIds: list[int]) -> DcgmGroup:
        return DcgmGroup(_gpus("GetGroupWithGpuIds", gpuIds))

    def UpdateAllFields(self, waitForUpdate: int) -> None:
        _scenario("UpdateAllFields", waitForUpdate)


class DcgmSystemDiscovery:
    def GetAllSupportedGpuIds(self) -> list[int]:
        return list(range(len(_scenario("GetAllSupportedGpuIds")["gpus"])))

    def GetGpuAttributes(self, gpuId: int) -> Any:
        uuid = _scenario("GetGpuAttributes", gpuId)["gpus"][gpuId]["uuid"]
        return SimpleNamespace(identifiers=SimpleNamespace(uuid=uuid))


class DcgmFieldGroup:
    def __init__(self, dcgmHandle: DcgmHandle, name: str = "", fieldIds: list[int] | None = None) -> None:
        self.fieldIds = fieldIds or []
        _scenario("DcgmFieldGroup", self.fieldIds)

    def Delete(self) -> None:
        _scenario("Delete")


class DcgmGroup:
    def __init__(self, gpuIds: list[int]) -> None:
        self.samples = DcgmGroupSamples(gpuIds)


class DcgmGroupSamples:
    def __init__(self, gpuIds: list[int]) -> None:
        self._gpuIds = gpuIds

    def WatchFields(self, fieldGroup: DcgmFieldGroup, updateFreq: int, maxKeepAge: float, maxKeepSamples: int) -> None:
        _scenario("WatchFields", updateFreq, maxKeepAge, maxKeepSamples)

    def UnwatchFields(self, fieldGroup: DcgmFieldGroup) -> None:
        _scenario("UnwatchFields")

    def GetLatest(self, fieldGroup: DcgmFieldGroup) -> Any:
        gpus = _scenario("GetLatest")["gpus"]
        return SimpleNamespace(
            values={
                index: {int(number): _series(value) for number, value in gpu["values"].items()}
                for index, gpu in enumerate(gpus)
                if index in self._gpuIds
            }
        )


def _gpus(call: str, gpuIds: list[int]) -> list[int]:
    _scenario(call, gpuIds)
    return gpuIds


def _series(value: float | None) -> list[Any]:
    return [SimpleNamespace(value=value, isBlank=value is None, ts=time.time_ns() // 1000)]
