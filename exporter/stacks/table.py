"""Stacks by number, as the child that unwinds sends them: each once, within limits of all together.

The child numbers stacks from the start when it begins, and may be hostile: here a stack has an index that stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from exporter.stack_profiles.model import Frame, Stack

MOST_STACKS, MOST_PLACES, MOST_TEXT = 1 << 15, 1 << 20, 32 << 20
"""Stacks, frames of all stacks, and characters of all different frames."""
NO_STACK = 0
_MOST_FRAMES, _MOST_PARTS, _LONGEST = 1200, 64, 4096


class StackTable:
    """Not safe from several threads: the ledger has the lock."""

    def __init__(self) -> None:
        self._frames: dict[Frame, Frame] = {}
        self._stacks: dict[int, Stack] = {NO_STACK: ()}
        self._indices: dict[Stack, int] = {(): NO_STACK}
        self._parts: dict[int, list[Frame]] = {}
        self._numbers: dict[int, int] = {}
        self._next = 1
        self._places = self._text = 0
        self.refused = 0
        """Stacks for which there was no room."""

    def begin(self) -> None:
        """Another child numbers its stacks from the start."""
        self._numbers.clear()
        self._places -= sum(map(len, self._parts.values()))
        self._parts.clear()

    def define(self, number: int, frames: Iterable[Any]) -> None:
        """Take further frames of a stack of the child. Raises ValueError, TypeError for what is no frame."""
        made = [_frame(it) for it in frames]
        known = self._parts.setdefault(number, [])
        known += [self._frames.get(frame) or self._intern(frame) for frame in made]
        self._places += len(made)
        if len(known) > _MOST_FRAMES or len(self._parts) > _MOST_PARTS:
            raise ValueError("more frames than a stack has")

    def index(self, number: int) -> int:
        """Return the index of a stack of the child; NO_STACK where there was no room, or it was not sent."""
        if number not in self._numbers:
            stack = tuple(self._parts.pop(number, ()))
            index = self._indices.get(stack)
            if index is not None:
                self._places -= len(stack)
            elif self.is_full:
                self._places -= len(stack)
                index = NO_STACK
            else:
                index, self._next = self._next, self._next + 1
                self._stacks[index], self._indices[stack] = stack, index
            self._numbers[number] = index
        if self._numbers[number] == NO_STACK:
            self.refused += 1
        return self._numbers[number]

    def stack(self, index: int) -> Stack:
        """Return the frames of a stack; none of one that was forgotten."""
        return self._stacks.get(index, ())

    @property
    def is_worn(self) -> bool:
        """Return whether the child has used so many numbers that it should begin again."""
        return len(self._numbers) >= 2 * MOST_STACKS

    @property
    def is_full(self) -> bool:
        return self.is_worn or len(self._stacks) >= MOST_STACKS or self._places > MOST_PLACES or self._text > MOST_TEXT

    def keep(self, used: Collection[int]) -> None:
        """Forget all other stacks, and the child's numbers: it has to send again what it sent before."""
        self._numbers.clear()
        self._stacks = {index: stack for index, stack in self._stacks.items() if index in used or index == NO_STACK}
        self._indices = {stack: index for index, stack in self._stacks.items()}
        self._frames = {frame: frame for stack in self._stacks.values() for frame in stack}
        self._places = sum(map(len, self._stacks.values())) + sum(map(len, self._parts.values()))
        self._text = sum(map(_characters, self._frames))

    def _intern(self, frame: Frame) -> Frame:
        if self._text > MOST_TEXT:
            return frame  # of a stack that is refused
        self._text += _characters(frame)
        return self._frames.setdefault(frame, frame)


def _characters(frame: Frame) -> int:
    return len(frame.function) + len(frame.file) + len(frame.module)


def _frame(message: Any) -> Frame:
    function, file, line, kind, module, build_id, address = message
    texts = (function, file, module, build_id)
    if not all(isinstance(it, str) and len(it) <= _LONGEST for it in texts) or kind not in ("python", "native"):
        raise ValueError("no frame")
    if not (isinstance(line, int) and 0 <= line < 1 << 31 and isinstance(address, int) and 0 <= address < 1 << 64):
        raise ValueError("no frame")
    return Frame(function, file, line, kind, module, build_id, address)
