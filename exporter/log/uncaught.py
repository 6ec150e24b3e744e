"""Log lines in place of the tracebacks that Python writes of exceptions that nothing catches."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType

FRAMES = 8
"""The innermost frames of an exception that are logged; a line has room for about as many."""

_logger = logging.getLogger("exporter.uncaught")


def to_log() -> None:
    """Log exceptions that end the program or a thread, or that Python ignores, within the limits of the log.

    Those of asyncio are logged by asyncio.
    """
    sys.excepthook = _of_program
    threading.excepthook = _of_thread
    sys.unraisablehook = _ignored


# Each of these has a rate of its own: threads that end so do not suppress the last line of the program.


def _of_program(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, where)
    else:
        _logger.error("the exporter ends: %s: %s", kind.__name__, error, extra=_frames(error))


def _of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name, kind, error = ended.thread.name if ended.thread else "", ended.exc_type.__name__, ended.exc_value
        _logger.error("the thread %s ends: %s: %s", name, kind, error, extra=_frames(error))


def _ignored(found: sys.UnraisableHookArgs) -> None:
    what, kind, error = found.err_msg or "an exception is ignored", found.exc_type.__name__, found.exc_value
    _logger.error("%s: %s: %s", what, kind, error, extra=_frames(error))


def _frames(error: BaseException | None) -> dict[str, str]:
    return {"traceback": "".join(traceback.format_exception(error, limit=-FRAMES))} if error else {}
