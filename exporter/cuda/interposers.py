"""Libraries put before the driver that define its functions and pass calls on to it."""

from __future__ import annotations

import re

from exporter.bpf.interposers import Interposers
from exporter.cuda.functions import FUNCTIONS

_NAMES = re.compile(r"libcuda\.so(\.[0-9]+)*")
"""Names of the driver, also of a replacement that is loaded in its place."""

passes_on = Interposers(_NAMES, (it.name for it in FUNCTIONS if it.layer == "driver")).passes_on
