"""The ends of ranges that the server and its clients share."""

from __future__ import annotations

RUNS_MOST = 1_000
"""Runs of one list."""

COUNT_MOST = 1_000_000_000
"""What people count. More would mean no end, and may not fit where it is kept."""
