"""A secret given on the command line, wiped from the process list.

Linux shows a process its own arguments as memory, and whoever lists processes sees what stands
there now. An environment variable never shows there at all, so that stays the better way.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

_ARG_START, _ARG_END = 45, 46
"""Fields of `/proc/self/stat` after the command's closing bracket (48 and 49 of proc(5))."""


def hide(secret: str) -> None:
    """Overwrite the secret in this process's arguments; nothing where that is not possible."""
    data = secret.encode("utf-8", "surrogateescape")
    if not data:
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end:
            at = ctypes.string_at(start, end - start).find(data)
            if at >= 0:
                ctypes.memset(start + at, ord("*"), len(data))
