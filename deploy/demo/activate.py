"""Start of a program with a socket that listens already: python -m deploy.demo.activate DESCRIPTOR COMMAND...

The socket is passed as systemd passes those of a .socket unit, sd_listen_fds(3).
"""

from __future__ import annotations

import os
import sys

FIRST = 3
"""SD_LISTEN_FDS_START."""


def main(descriptor: str, *command: str) -> None:
    """Replace this process by the program. Raises OSError."""
    if int(descriptor) == FIRST:
        os.set_inheritable(FIRST, True)
    else:
        os.dup2(int(descriptor), FIRST)
        os.close(int(descriptor))
    os.execvpe(command[0], command, {**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})


if __name__ == "__main__":
    main(*sys.argv[1:])
