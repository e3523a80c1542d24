"""What tests of several parts share."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

_VERSION_3 = 0x20080522
_READS_ALL = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@pytest.fixture
def permission_bits() -> Callable[[], AbstractContextManager[None]]:
    """Within it, this thread and no other reads only what the bits let it, also as root."""
    return _permission_bits


@contextmanager
def _permission_bits() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root reads everything, and only Linux lets a thread give that up")
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # Effective, permitted, inheritable; twice, for the low and the high capabilities.
    before, less = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0, os.strerror(ctypes.get_errno())
    less[:] = before[:]
    less[0] &= ~_READS_ALL
    assert libc.capset(header, less) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0, os.strerror(ctypes.get_errno())
