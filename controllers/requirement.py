"""A placement in words: for sentences (`describe`) and for table cells (`requirement`). Pure.

Clients match on these texts, so they are stable.
"""

from __future__ import annotations

from datastore.kinds import LabelRule, NotIn, Placement

ANY_WORKER = "any worker"


def describe(placement: Placement) -> str:
    """What follows "waiting for worker matching": `target 'x'`, `labels a=b,c=d and platform 'p'`.

    A target decides alone, so nothing else is named beside it; `any worker` for no placement.
    """
    if placement.target is not None:
        return f"target '{placement.target}'"
    parts = []
    if placement.labels:
        parts.append(f"labels {','.join(_pairs(placement))}")
    if placement.platform is not None:
        parts.append(f"platform '{placement.platform}'")
    return " and ".join(parts) or ANY_WORKER


def requirement(placement: Placement) -> str:
    """The short form: `target=x, pool=gpu, platform=linux`, or `any worker`."""
    parts = [] if placement.target is None else [f"target={placement.target}"]
    parts += _pairs(placement)
    if placement.platform is not None:
        parts.append(f"platform={placement.platform}")
    return ", ".join(parts) or ANY_WORKER


def _pairs(placement: Placement) -> list[str]:
    return [_label_text(key, rule) for key, rule in sorted(placement.labels.items())]


def _label_text(key: str, rule: LabelRule) -> str:
    """One label rule: `pool=gpu`, `zone in (a|b)`, `zone not in (a|b)`."""
    if isinstance(rule, str):
        return f"{key}={rule}"
    if isinstance(rule, NotIn):
        return f"{key} not in ({'|'.join(rule.not_)})"
    return f"{key} in ({'|'.join(rule)})"
