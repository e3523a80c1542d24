r"""Pairs of escapes in YAML that are one character: `"\ud83d\ude00"`, as JSON is written mostly.

YAML has `"\U0001f600"` for it, and libyaml refuses the pair; but JSON is YAML. A file without such
pairs takes no longer for it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

import yaml

from datastore.yaml_problems import BAD_ESCAPE

_PAIR = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
)
_FILLER = r"\ufffd\ufffd"
"""As long as a pair: what is behind it stays where it is."""

Compose = Callable[[bytes], yaml.Node | None]


def composed(data: bytes, compose: Compose) -> yaml.Node | None:
    """What `compose` makes of the data, and of it with the pairs as characters if it refuses them.

    YAMLError as of `compose`; a lone half of a pair is one.
    """
    try:
        return compose(data)
    except yaml.YAMLError as error:
        if getattr(error, "problem", None) != BAD_ESCAPE:
            raise
        text = data.decode()
        pairs = list(_PAIR.finditer(text))
        if not pairs:
            raise
    return _with_pairs(text, pairs, compose)


def _with_pairs(text: str, pairs: list[re.Match[str]], compose: Compose) -> yaml.Node | None:
    quoted = {at for node in _quoted(_filled(text, pairs, compose)) for at in _within(node, pairs)}
    # Elsewhere a backslash is a backslash.
    escapes = [pairs[at] for at in sorted(quoted)]
    root = _filled(text, escapes, compose)
    for node in _quoted(root):
        if _within(node, escapes):
            written = text[node.start_mark.index : node.end_mark.index]
            alone = compose(_PAIR.sub(_character, written).encode())
            assert isinstance(alone, yaml.ScalarNode)
            node.value = alone.value
    return root


def _filled(text: str, pairs: list[re.Match[str]], compose: Compose) -> yaml.Node | None:
    pieces, end = [], 0
    for pair in pairs:
        pieces += [text[end : pair.start()], pair[1], _FILLER]
        end = pair.end()
    return compose("".join([*pieces, text[end:]]).encode())


def _quoted(root: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """All double-quoted texts, keys too, each once."""
    left, seen = [] if root is None else [root], set()
    while left:
        node = left.pop()
        if isinstance(node, yaml.ScalarNode):
            if node.style == '"':
                yield node
        elif id(node) not in seen:
            # An alias is the node itself.
            seen.add(id(node))
            inside = node.value
            is_mapping = isinstance(node, yaml.MappingNode)
            left += [one for both in inside for one in both] if is_mapping else inside


def _within(node: yaml.ScalarNode, pairs: list[re.Match[str]]) -> range:
    """Which of the pairs are in the text of a node."""
    first = bisect_left(pairs, node.start_mark.index, key=re.Match.start)
    return range(first, bisect_left(pairs, node.end_mark.index, key=re.Match.start))


def _character(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return rf"{pair[1]}\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"
