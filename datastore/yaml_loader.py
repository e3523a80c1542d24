"""The one strict YAML loader: what a file looks like is what it means, everything else is refused.

libyaml's C parser builds the nodes, a walk of ours gives them meaning: the scalars of YAML 1.2 core
that JSON also knows are typed, all others (`NO`, `on`, `12:30`, `017`, `0x1F`, `2026-11-29`) stay
the strings they look like. Every refusal is an `InvalidFile` of one line with its position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml
from yaml._yaml import CParser

from datastore.errors import InvalidFile, Position
from datastore.plain_values import INT_MAX, INT_MIN, MAX_DEPTH, too_deep
from datastore.yaml_pairs import composed
from datastore.yaml_problems import plain_problem

MAX_BYTES = 1 << 20
"""Of a file that people write; whoever reads one asks for no more than one byte more."""
MAX_ALIASES = 64
MAX_NODES = 100_000
OWN_DEPTH, OWN_NODES = 3 * MAX_DEPTH, 10_000_000
"""Of what the server wrote: values that were checked one by one, put into each other."""

_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_NUMBER_STARTS = frozenset("-+.0123456789")

_PLAIN_ASCII = bytes([0x09, 0x0A, 0x0D, *range(0x20, 0x7F)])
_ODD = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_MARKER = re.compile(rb"^(?:<{7}|\|{7}|={7}|>{7})(?=[ \r\n]|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its value, and where in the file each part of the value stands."""

    value: dict[str, Any]
    root: yaml.MappingNode = field(repr=False, compare=False)

    def position(self, *keys: str | int) -> Position:
        """Where the value at that path is; for a mapping's key, where the key is.

        Of a path that is not there, the nearest parent that is.
        """
        node: yaml.Node = self.root
        place: yaml.Node = node
        for key in keys:
            found = _child(node, key)
            if found is None:
                break
            place, node = found
        return _position(place)


def load(data: bytes, path: str, *, max_bytes: int = MAX_BYTES, own: bool = False) -> Document:
    """The one mapping that `data` holds; InvalidFile, naming `path`, for anything else.

    `own`: a file as the server writes it, which may hold more and be deeper than one of people.
    """
    if len(data) > max_bytes:
        raise InvalidFile(path, f"is longer than {max_bytes} bytes: make it shorter, or split it")
    data = data.removeprefix(b"\xef\xbb\xbf")
    _refuse_characters(data, path)
    _refuse_conflict_markers(data, path)
    depth = OWN_DEPTH if own else MAX_DEPTH
    with _plain_words(data, path, depth):
        root = composed(data, lambda given: _compose(given, depth))
    if root is None or (isinstance(root, yaml.ScalarNode) and root.style == "" and not root.value):
        raise InvalidFile(path, "is empty, expected a mapping", Position(1, 1))
    if not isinstance(root, yaml.MappingNode):
        problem = f"expected a mapping of keys to values, found {_kind(root)}"
        raise InvalidFile(path, problem, _position(root))
    walk = _Walk(path, depth, OWN_NODES if own else MAX_NODES)
    return Document(walk.document(root), root)


class _TooDeep(Exception):
    """Nested deeper than anybody means; carries the node that is."""

    def __init__(self, node: yaml.Node) -> None:
        super().__init__()
        self.node = node


class _Composer(CParser):
    """libyaml's nodes with no meaning given to them: the tag of a node is empty unless written.

    Depth is limited while composing, since libyaml's own recursion would exhaust the C stack.
    """

    depth = 0
    most = MAX_DEPTH

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        return ""

    def descend_resolver(self, parent: yaml.Node | None, index: Any) -> None:
        self.depth += 1
        if parent is not None and self.depth > self.most + 1:
            raise _TooDeep(parent)

    def ascend_resolver(self) -> None:
        self.depth -= 1


def _compose(data: bytes, depth: int) -> yaml.Node | None:
    composer = _Composer(data)
    composer.most = depth
    root: yaml.Node | None = composer.get_single_node()
    return root


class _Walk:
    """Nodes to plain Python values, refusing what means different things to different readers."""

    def __init__(self, path: str, max_depth: int, max_nodes: int) -> None:
        self._path = path
        self._max_depth, self._max_nodes = max_depth, max_nodes
        self._seen: set[yaml.Node] = set()
        self._open: set[yaml.Node] = set()
        self._in_alias = False
        self._aliases = 0
        self._nodes = 0

    def document(self, root: yaml.MappingNode) -> dict[str, Any]:
        self._refuse_tag(root)
        value: dict[str, Any] = self._collection(root)
        return value

    def _value(self, node: yaml.Node) -> Any:
        self._refuse_tag(node)
        if not isinstance(node, yaml.ScalarNode):
            return self._collection(node)
        self._count(node)
        return self._scalar(node) if node.style == "" else node.value

    def _collection(self, node: yaml.Node) -> Any:
        if node in self._open:
            self._refuse(node, "contains itself through an alias")
        if len(self._open) >= self._max_depth:
            self._refuse(node, too_deep(self._max_depth))
        outer = self._in_alias
        self._in_alias = self._count(node) or outer
        self._open.add(node)
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node)
        else:
            value = [self._value(item) for item in node.value]
        self._open.discard(node)
        self._in_alias = outer
        return value

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in result:
                first = _position(next(k for k, _ in node.value if k.value == key))
                self._refuse(key_node, f"key '{key}' is here twice, first on line {first.line}")
            result[key] = self._value(value_node)
        return result

    def _count(self, node: yaml.Node) -> bool:
        """Count a value; whether an alias brought it here."""
        self._nodes += 1
        most = MAX_NODES if self._aliases else self._max_nodes
        if self._nodes > most:
            self._refuse(node, f"holds more than {most} values, aliases counted in full")
        if node not in self._seen:
            self._seen.add(node)
            return False
        if not self._in_alias:
            self._aliases += 1
        if self._aliases > MAX_ALIASES:
            self._refuse(node, f"a file may use {MAX_ALIASES} aliases: write the values out")
        return True

    def _key(self, node: yaml.Node) -> str:
        self._refuse_tag(node)
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(node, f"keys must be strings, this is {_kind(node)}")
        text: str = node.value
        self._count(node)
        if node.style == "":
            if text == "<<":
                self._refuse(node, "merge keys ('<<') are not supported: write the keys out")
            if not isinstance(self._scalar(node), str):
                self._refuse(node, f'keys must be strings: quote it, "{text}"')
        return text

    def _scalar(self, node: yaml.ScalarNode) -> str | int | float | bool | None:
        text: str = node.value
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in _NUMBER_STARTS:
            return text
        if _INT.match(text):
            # Longer than any 64-bit number: int() of thousands of digits is slow, or refuses.
            value = int(text) if len(text) <= 20 else INT_MAX + 1
            if not INT_MIN <= value <= INT_MAX:
                self._refuse(node, "the number does not fit 64 bits: quote it if it is an id")
            return value
        if _FLOAT.match(text):
            return _float_or_id(text)
        if _NOT_FINITE.match(text):
            self._refuse(node, f"'{text}' is not a finite number: quote it if it is a text")
        return text

    def _refuse_tag(self, node: yaml.Node) -> None:
        if node.tag:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._refuse(node, f"tags are not supported, found '{tag}': remove it")

    def _refuse(self, node: yaml.Node, problem: str) -> NoReturn:
        raise InvalidFile(self._path, problem, _position(node))


def _float_or_id(text: str) -> float | str:
    """The number, or the text itself where the number would be infinite or vanish.

    Such texts (`1234e567`) are ids that happen to look like a number.
    """
    value = float(text)
    vanished = value == 0.0 and any(digit in "123456789" for digit in re.split("[eE]", text)[0])
    return text if math.isinf(value) or vanished else value


def _refuse_characters(data: bytes, path: str) -> None:
    if data.isascii() and not data.translate(None, _PLAIN_ASCII):
        return
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidFile(path, "is UTF-16: save it as UTF-8", Position(1, 1))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8, found byte 0x{data[error.start]:02x}: save it as UTF-8"
        raise InvalidFile(path, problem, _position_at(data[: error.start].decode())) from None
    odd = _ODD.search(text)
    if odd is not None:
        code = ord(odd[0])
        # Readers of YAML 1.1 and 1.2 disagree on whether U+0085, U+2028 and U+2029 end a line.
        problem = f'found the invisible character U+{code:04X}: remove it, or write "\\u{code:04x}"'
        raise InvalidFile(path, problem, _position_at(text[: odd.start()]))


def _refuse_conflict_markers(data: bytes, path: str) -> None:
    if not (b"<<<<<<<" in data or b"=======" in data or b">>>>>>>" in data or b"|||||||" in data):
        return
    marker = _MARKER.search(data)
    if marker is not None:
        problem = (
            f"unresolved merge conflict ('{marker[0].decode()}'): keep one side, drop the marks"
        )
        raise InvalidFile(path, problem, _position_at(data[: marker.start()].decode()))


@contextmanager
def _plain_words(data: bytes, path: str, depth: int) -> Iterator[None]:
    """Turn what the parser raises into an InvalidFile."""
    try:
        yield
    except _TooDeep as error:
        raise InvalidFile(path, too_deep(depth), _position(error.node)) from None
    except yaml.YAMLError as error:
        problem, position = plain_problem(error, data.decode(), depth)
        raise InvalidFile(path, problem, position) from None


def _child(node: yaml.Node, key: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Where the child is, and the child itself."""
    if isinstance(node, yaml.MappingNode):
        return next(((k, v) for k, v in node.value if k.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key], node.value[key]
    return None


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _position_at(before: str) -> Position:
    return Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
