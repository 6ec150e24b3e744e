"""The job's side: prints what it can do, then runs a loop at each line of its input until that closes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Loop = Callable[[int], Mapping[str, Any]]
"""Does so many steps and returns what was done, by name."""


def serve(loops: Mapping[str, Loop], uuid: str, why: str = "") -> None:
    """`why` is what keeps the job from other loops. Every answer has the seconds its loop took."""
    print(json.dumps({"loops": list(loops), "uuid": uuid, "why": why}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        did = loops[request["loop"]](request["steps"])
        print(json.dumps({"seconds": time.perf_counter() - began, **did}), flush=True)
