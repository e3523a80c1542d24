"""The errors of the datastore: a small tree, each naming the thing, its state and the way out."""

from __future__ import annotations

from dataclasses import dataclass

from datastore.unicode_text import is_unicode


class SwampError(Exception):
    """Anything a person can act on; printed as one line, never as a traceback."""


def alone(error: BaseException) -> BaseException:
    """What went wrong, without the groups that task groups make of it.

    Of several the first, if a person can act on each of them; else all of them, in their group.
    """
    while isinstance(error, BaseExceptionGroup):
        others = error.split(SwampError)[1]
        if others is not None and len(error.exceptions) > 1:
            break
        error = error.exceptions[0]
    return error


def printable(text: str) -> str:
    """The text with whatever a terminal would obey, line ends too, written as an escape."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


NO_UTF8_NAME = "is not read: its name is no UTF-8, rename it"


class DatastoreError(SwampError):
    """Root of what can go wrong with records and files."""


class NotFound(DatastoreError):
    """No record of that name."""


class AlreadyExists(DatastoreError):
    """A record of that name is there already."""


class Conflict(DatastoreError):
    """The record changed since it was read; read again and decide again."""


class InvalidTransition(DatastoreError):
    """A record was asked for a move that its state does not allow."""


class RepositoryLocked(DatastoreError):
    """Another process holds the repository; the message names its pid."""


class RepositoryMoved(DatastoreError):
    """The folder that is served is not at its path any more; the message says where it is."""


class RepositoryTaken(RepositoryMoved):
    """Another process holds the lock of the folder that is served; the message names its pid."""


class NoRepository(DatastoreError):
    """No `.swamp.yaml` here or above."""


class Degraded(DatastoreError):
    """The disk refuses writes; nothing new is taken on until it accepts them again."""


class DiskFull(DatastoreError):
    """The repository cannot be opened for want of room on its disk; all in it is as it was."""

    def __init__(self, refused: str) -> None:
        """`refused` tells what could not be done."""
        super().__init__(
            "the disk is full, make room on it and try again (`swamp run prune` needs some itself)."
            f" Nothing is damaged, and nothing is to be removed from .swamp/: {refused}"
        )
        self.refused = refused


class NotDurableYet(Degraded):
    """The change is made and in line for the disk, which refuses writes: asking again would make
    another one."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where in a file: 1-based line and column."""

    line: int
    column: int


class InvalidFile(DatastoreError):
    """A file that does not parse or validate: path, position, what was found and expected."""

    def __init__(self, path: str, problem: str, position: Position | None = None) -> None:
        # It is sent and printed: a name that is no UTF-8 with escapes.
        self.path = path if is_unicode(path) else printable(path)
        self.problem = problem
        self.position = position
        where = f"{path}:{position.line}:{position.column}" if position else path
        # Names of files may hold anything, and this is printed.
        super().__init__(printable(f"{where}: {problem}"))
