"""Detection of the end of a process."""

from __future__ import annotations

import os
import select


def has_ended(pid: int) -> bool:
    """Return whether the last thread of a process is gone, also where its parent has not waited for it (a zombie).

    False where that cannot be known, since there are no descriptors left.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)  # pidfd_open(2): readable once the last thread is gone
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)
