"""Print a page of docs/: `python -m tools.docs PAGE`, one of PAGES."""

from __future__ import annotations

import sys

from tools.docs.pages import PAGES

if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
