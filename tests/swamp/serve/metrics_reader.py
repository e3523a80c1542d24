"""A strict reader of Prometheus' text format 0.0.4."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}

Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Family:
    """One metric: its samples by suffix of their names and by labels."""

    help: str
    kind: str = ""
    samples: dict[Sample, float] = field(default_factory=dict)

    def value(self, suffix: str = "", **labels: str) -> float:
        """The one sample with exactly these labels."""
        return self.samples[suffix, frozenset(labels.items())]


def read_metrics(text: str) -> dict[str, Family]:
    """The metrics of a page, by name; AssertionError where it breaks the format."""
    assert text.endswith("\n")
    found: dict[str, Family] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, told = line.removeprefix("# HELP ").partition(" ")
            assert name not in found, f"{name} is announced twice"
            found[name] = Family(_unescaped(told))
        elif line.startswith("# TYPE "):
            typed, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert typed == name and not found[name].kind, line
            assert kind in _SUFFIXES, line
            found[name].kind = kind
        else:
            _take(found[name], name, line)
    return found


def _take(family: Family, name: str, line: str) -> None:
    match = _SAMPLE.fullmatch(line)
    assert match is not None, f"no sample: {line}"
    sampled, inside, value = match.groups()
    suffix = sampled.removeprefix(name)
    assert sampled.startswith(name) and suffix in _SUFFIXES[family.kind], line
    labels = _LABEL.findall(inside or "")
    assert "".join(f'{key}="{text}",' for key, text in labels).rstrip(",") == (inside or ""), line
    key = suffix, frozenset((label, _unescaped(text)) for label, text in labels)
    assert key not in family.samples, f"twice: {line}"
    family.samples[key] = float(value)


def _unescaped(text: str) -> str:
    meaning = {"n": "\n"}
    return re.sub(r"\\(.)", lambda found: meaning.get(found[1], found[1]), text)
