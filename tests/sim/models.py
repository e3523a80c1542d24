"""The models that simulated steps call."""

from __future__ import annotations

MODELS = {"m": 0, "one": 1, "two": 2, "three": 3}
"""How many executions of each model there may be at the same time; 0 without a limit."""
