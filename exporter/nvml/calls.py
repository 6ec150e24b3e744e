"""Every NVML call goes through here: counted, structures passed by reference, failures told apart. Of the child only.

nvidia-ml-py passes some structures to C as they are given: by value they would be read, and written, as an address.
Those calls get a reference here (questions.Call.structure); it makes the reference itself in all others we use.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml  # type: ignore[import-untyped]

from exporter.nvml.codes import INVALID_ARGUMENT, NEVER, NO_FUNCTION, NOT_FOUND, STATES, WHOLE
from exporter.nvml.questions import Call
from exporter.nvml.snapshot import Values


class NvmlError(Exception):
    """A call failed with `code`, one of NVML's nvmlReturn_t."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}: {text} ({code})")
        self.code = code


@dataclass(slots=True)
class Target:
    """What calls are about, a GPU or a MIG device: its handle, and what is known not to work on it."""

    handle: Any
    never: set[object] = field(default_factory=set, kw_only=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field value to ask for; `link` is None for one of the GPU itself."""

    key: str
    id: int
    scope: int = 0
    link: int | None = None


class Nvml:
    """The library. `calls` counts the calls of ours; nvidia-ml-py may make two for one, first for a size."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, function: str, *arguments: Any) -> Any:
        """The result of a function of nvidia-ml-py. Raises NvmlError, also where there is no such function."""
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
        """The string a function gives; empty when it gives none."""
        result = self.optional(function, *arguments)
        return str(result) if result is not None else ""

    def optional(self, function: str, *arguments: Any) -> Any:
        """The result of a function about something that need not be there; None when it is not."""
        try:
            return self.call(function, *arguments)
        except NvmlError as error:
            _raise_if_over(error)
            return None

    def read(self, target: Target, calls: Iterable[Call], known: Values | None = None) -> Values:
        """What is known and the calls tell of a target. Raises NvmlError when it, or NVML as a whole, is lost."""
        values: dict[str, int | float] = dict(known or {})
        for call in calls:
            if (call.function, call.arguments) in target.never or call.unless in values:
                continue
            try:
                result = self._about(target.handle, call)
            except NvmlError as error:
                _raise_if_over(error)
                if error.code in NEVER and (call.arguments or error.code != INVALID_ARGUMENT):
                    target.never.add((call.function, call.arguments))
                continue
            values |= {key: value for key, value in call.keep(result).items() if value is not None}
        return values

    def _about(self, handle: Any, call: Call) -> Any:
        if not call.structure:
            return self.call(call.function, handle, *call.arguments)
        make = getattr(pynvml, call.structure, None)
        if make is None:
            raise NvmlError(call.function, NO_FUNCTION, f"nvidia-ml-py has no {call.structure}")
        structure = make()
        self.call(call.function, handle, ctypes.byref(structure))
        return structure

    def fields(self, target: Target, wanted: Sequence[Wanted]) -> dict[int | None, dict[str, int | float]]:
        """Field values by link (None: of the GPU itself) and key, all in one call. Raises NvmlError as `read` does."""
        asked = [it for it in wanted if it not in target.never]
        if not asked or "fields" in target.never:
            return {}
        try:
            answers = self.call("nvmlDeviceGetFieldValues", target.handle, [(it.id, it.scope) for it in asked])
        except NvmlError as error:
            _raise_if_over(error)
            if error.code in NEVER and error.code != INVALID_ARGUMENT:  # which an old handle is
                target.never.add("fields")
            return {}
        values: dict[int | None, dict[str, int | float]] = {}
        for it, answer in zip(asked, answers, strict=True):
            code = answer.nvmlReturn
            if code in STATES:
                raise NvmlError("nvmlDeviceGetFieldValues", code, STATES[code])
            if code in NEVER:
                target.never.add(it)
            value = _field(answer) if code == 0 else None
            if value is not None:
                values.setdefault(it.link, {})[it.key] = value
        return values


def address(handle: Any) -> int:
    """What tells handles apart that were made by different calls."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def field_id(name: str) -> int | None:
    """The number of NVML_FI_… by the rest of its name; None when nvidia-ml-py does not know it."""
    return getattr(pynvml, f"NVML_FI_{name}", None)


_UNSIGNED = {1: ("uiVal", 4), 2: ("ulVal", 8), 3: ("ullVal", 8), 6: ("usVal", 2)}
_SIGNED = {4: "sllVal", 5: "siVal"}


def _field(answer: Any) -> int | float | None:
    """The value in the union by its type; None for NVML_VALUE_NOT_AVAILABLE, no number and an unknown type."""
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
