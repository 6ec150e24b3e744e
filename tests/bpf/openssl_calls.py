"""A process that calls functions with OpenSSL's names, which return what the test wants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

_SOURCE = """
#include <stddef.h>
struct ssl { size_t moved; int returned; int freed; };
int SSL_read(struct ssl *ssl, void *buffer, int size) { return ssl->returned; }
int SSL_write(struct ssl *ssl, const void *buffer, int size) { return ssl->returned; }
int SSL_read_ex(struct ssl *ssl, void *buffer, size_t size, size_t *moved)
{
	if (moved > (size_t *)4096)
		*moved = ssl->moved;
	return ssl->returned;
}
int SSL_write_ex(struct ssl *ssl, const void *buffer, size_t size, size_t *moved)
{
	if (moved > (size_t *)4096)
		*moved = ssl->moved;
	return ssl->returned;
}
int SSL_shutdown(struct ssl *ssl) { return ssl->returned; }
void SSL_free(struct ssl *ssl) { ssl->freed = 1; }
"""

_PROGRAM = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
class Ssl(ctypes.Structure):
    _fields_ = [("moved", ctypes.c_size_t), ("returned", ctypes.c_int), ("freed", ctypes.c_int)]
all = [Ssl() for _ in range(8)]
print(flush=True)
for line in sys.stdin:
    name, number, data, moved = json.loads(line)
    ssl, data = ctypes.byref(all[number]), data.encode()
    size = ctypes.c_size_t(len(data))
    if name == "wild":
        all[number].returned = all[number].moved = 64
        for call in ("SSL_read", "SSL_write", "SSL_read_ex", "SSL_write_ex"):
            for address in (1, 1 << 46, 1 << 63):
                rest = (ctypes.c_void_p(address + 1), ctypes.c_size_t(64), ctypes.c_void_p(8))
                getattr(library, call)(ssl, *rest)
    elif name == "SSL_free":
        library.SSL_free(ssl)
    else:
        count = len(data) if moved is None else moved
        all[number].moved = count
        all[number].returned = (count > 0) if name.endswith("_ex") else count or -1
        result = ctypes.byref(ctypes.c_size_t())
        getattr(library, name)(ssl, data, size, *([result] if name.endswith("_ex") else []))
"""


class Calls:
    """The process, once it has loaded the library; connections are 0 to 7."""

    def __init__(self, folder: Path) -> None:
        source, library = folder / "ssl.c", folder / "libssl.so.3"
        source.write_text(_SOURCE)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
        command = [sys.executable, "-c", _PROGRAM, str(library)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self._process.stdout.readline()
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()

    def read(self, number: int, data: bytes, moved: int | None, kind: str) -> None:
        """Read these bytes, or only `moved` of them; 0: fail."""
        self._call(f"SSL_read{kind}", number, data, moved)

    def write(self, number: int, data: bytes, moved: int | None, kind: str) -> None:
        """Write them."""
        self._call(f"SSL_write{kind}", number, data, moved)

    def free(self, number: int) -> None:
        """Free a connection."""
        self._call("SSL_free", number, b"", None)

    def wild(self) -> None:
        """Pass addresses at which nothing is, and report that 64 bytes were moved."""
        self._call("wild", 7, b"", None)

    def finish(self) -> None:
        """Wait until all has been called."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)

    def _call(self, *call: Any) -> None:
        assert self._process.stdin
        name, number, data, moved = call
        self._process.stdin.write(json.dumps([name, number, data.decode(), moved]) + "\n")
        self._process.stdin.flush()
