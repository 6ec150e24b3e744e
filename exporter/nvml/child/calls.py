"""Calls of NVML: counted, with structures by reference, and with failures classified.

nvidia-ml-py passes some structures to C unchanged: C would take a structure by value for an address. Those calls get a
reference here (reading.Call.structure); nvidia-ml-py itself makes the reference in all other calls in use.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml  # type: ignore[import-untyped]

from exporter.nvml.child.queries import FieldRequest, Query
from exporter.nvml.codes import INVALID_ARGUMENT, NEVER, NO_FUNCTION, NOT_FOUND, STATES, WHOLE
from exporter.nvml.snapshot import Values


class NvmlError(Exception):
    """Failure of a call; `code` is one of NVML's nvmlReturn_t."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}: {text} ({code})")
        self.code = code


@dataclass(slots=True)
class NvmlTarget:
    """A GPU or a MIG device: the handle, and the calls and fields that it does not support."""

    handle: Any
    unsupported: set[object] = field(default_factory=set, kw_only=True)


class NvmlLibrary:
    """The library. `calls` counts our calls; nvidia-ml-py may make two C calls for one, the first for a size."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, function: str, *arguments: Any) -> Any:
        """Calls a function of nvidia-ml-py. Returns its result. Raises NvmlError, also for a missing function."""
        self.calls += 1
        try:
            return getattr(pynvml, function)(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError(function, error.value, str(error)) from None
        except (AttributeError, pynvml.NVMLLibraryMismatchError) as error:
            raise NvmlError(function, NO_FUNCTION, str(error)) from None
        except UnicodeDecodeError as error:
            raise NvmlError(function, NOT_FOUND, f"not UTF-8: {error}") from None

    def text(self, function: str, *arguments: Any) -> str:
        """Returns the string result of a function; empty when the call fails."""
        result = self.optional(function, *arguments)
        return str(result) if result is not None else ""

    def optional(self, function: str, *arguments: Any) -> Any:
        """Returns the result of a call, None when the call fails. Raises NvmlError when GPU or NVML is lost."""
        try:
            return self.call(function, *arguments)
        except NvmlError as error:
            _raise_if_over(error)
            return None

    def read(self, target: NvmlTarget, queries: Iterable[Query], known: Values | None = None) -> dict[str, int | float]:
        """Returns the values of `known` and, for readings without a value there, of the calls.

        Raises NvmlError when the target, or NVML itself, is lost.
        """
        values: dict[str, int | float] = dict(known or {})
        for query in queries:
            same = (query.call.function, query.arguments)
            if same in target.unsupported or query.call.unless in values or query.takes.keys() <= values.keys():
                continue
            try:
                result = self._result_of(target.handle, query)
            except NvmlError as error:
                _raise_if_over(error)
                if error.code in NEVER and (query.arguments or error.code != INVALID_ARGUMENT):
                    target.unsupported.add(same)
                continue
            for key, take in query.takes.items():
                value = take(result)
                if value is not None:
                    values.setdefault(key, value)
        return values

    def _result_of(self, handle: Any, query: Query) -> Any:
        function, structure_name = query.call.function, query.call.structure
        if not structure_name:
            return self.call(function, handle, *query.arguments)
        make = getattr(pynvml, structure_name, None)
        if make is None:
            raise NvmlError(function, NO_FUNCTION, f"nvidia-ml-py has no {structure_name}")
        structure = make()
        self.call(function, handle, ctypes.byref(structure))
        return structure

    def fields(self, target: NvmlTarget, wanted: Sequence[FieldRequest]) -> dict[int | None, dict[str, int | float]]:
        """Reads fields in one call. Returns values by link (None: the GPU itself) and key. Raises as `read` does."""
        requests = [request for request in wanted if request not in target.unsupported]
        if not requests or "fields" in target.unsupported:
            return {}
        try:
            answers = self.call(
                "nvmlDeviceGetFieldValues", target.handle, [(request.number, request.scope) for request in requests]
            )
        except NvmlError as error:
            _raise_if_over(error)
            if error.code in NEVER and error.code != INVALID_ARGUMENT:  # an old handle fails so too
                target.unsupported.add("fields")
            return {}
        values: dict[int | None, dict[str, int | float]] = {}
        for request, answer in zip(requests, answers, strict=True):
            code = answer.nvmlReturn
            if code in STATES:
                raise NvmlError("nvmlDeviceGetFieldValues", code, STATES[code])
            if code in NEVER:
                target.unsupported.add(request)
            value = _field(answer) if code == 0 else None
            if value is not None:
                values.setdefault(request.link, {})[request.key] = value
        return values


def address(handle: Any) -> int:
    """Returns the address behind a handle: two handles of one GPU have the same."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


_UNSIGNED = {1: ("uiVal", 4), 2: ("ulVal", 8), 3: ("ullVal", 8), 6: ("usVal", 2)}
_SIGNED = {4: "sllVal", 5: "siVal"}


def _field(answer: Any) -> int | float | None:
    """Returns the value of a field; None for NVML_VALUE_NOT_AVAILABLE, NaN, infinity and unknown types."""
    kind, union = answer.valueType, answer.value
    if kind in _UNSIGNED:
        member, size = _UNSIGNED[kind]
        unsigned: int = getattr(union, member)
        return None if size > 2 and unsigned == (1 << 8 * size) - 1 else unsigned
    if kind in _SIGNED:
        signed: int = getattr(union, _SIGNED[kind])
        return signed
    if kind == 0 and math.isfinite(union.dVal):
        return float(union.dVal)
    return None


def _raise_if_over(error: NvmlError) -> None:
    if error.code in WHOLE or error.code in STATES:
        raise error
