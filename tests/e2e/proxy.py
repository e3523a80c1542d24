"""A TCP proxy that loses connections in every way a network can, at the test's command.

One thread moves the bytes; `cut`, `reset` and `freeze` take effect before they return.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import Literal

Direction = Literal["up", "down"]
"""`up` is what the worker sends, `down` what the server sends."""

BOTH: tuple[Direction, Direction] = ("up", "down")
_PIECE_BYTES = 256 << 10


class _Pipe:
    """One connection: the client's socket and the server's."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends: dict[Direction, socket.socket] = {"up": client, "down": server}
        self.frozen: set[Direction] = set()

    def close(self, *, reset: bool = False) -> None:
        for end in self.ends.values():
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class Proxy:
    """Listens on a port of its own and passes everything on to `port`."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pipes: list[_Pipe] = []
        self._refusing = False
        self._most: int | None = None
        self._asked: list[tuple[Callable[[], None], threading.Event]] = []
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    # -- for the test ----------------------------------------------------------------------------

    def let_through(self, most: int | None) -> None:
        """Refuse what is more than so many connections at once; None refuses nothing."""
        self._most = most

    def cut(self) -> None:
        """Close every connection in order (FIN)."""
        self._do(lambda: self._drop(reset=False))

    def reset(self) -> None:
        """Close every connection with an RST; what was under way is lost."""
        self._do(lambda: self._drop(reset=True))

    def freeze(self, *directions: Direction) -> None:
        """Pass nothing more on of the connections that are there, not even their end."""
        self._do(lambda: self._freeze(directions or BOTH))

    def thaw(self) -> None:
        """Pass on what has piled up, and what comes."""
        self._do(self._thaw)

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, or take them again."""

        def change() -> None:
            self._refusing = refusing

        self._do(change)

    def close(self) -> None:
        """End it, with every connection."""

        def end() -> None:
            self._over = True

        self._do(end)
        self._thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def _do(self, action: Callable[[], None]) -> None:
        done = threading.Event()
        self._asked.append((action, done))
        self._wake.send(b".")
        assert done.wait(10), "the proxy's thread is gone"

    def _run(self) -> None:
        while not self._over:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._obey()
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    pipe, direction = key.data
                    if pipe in self._pipes and direction not in pipe.frozen:
                        self._move(pipe, direction)
        self._drop(reset=False)
        for one in (self._listener, self._wake, self._woken, self._selector):
            one.close()

    def _obey(self) -> None:
        self._woken.recv(1)
        action, done = self._asked.pop(0)
        action()
        done.set()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = None
        full = self._most is not None and len(self._pipes) >= self._most
        if not self._refusing and not full:
            with contextlib.suppress(OSError):
                server = socket.create_connection(self._to, 5)
        if server is None:
            client.close()
            return
        pipe = _Pipe(client, server)
        self._pipes.append(pipe)
        for direction in BOTH:
            pipe.ends[direction].settimeout(5)
            self._watch(pipe, direction)

    def _watch(self, pipe: _Pipe, direction: Direction) -> None:
        self._selector.register(pipe.ends[direction], selectors.EVENT_READ, (pipe, direction))

    def _move(self, pipe: _Pipe, direction: Direction) -> None:
        other: Direction = "down" if direction == "up" else "up"
        try:
            data = pipe.ends[direction].recv(_PIECE_BYTES)
            if data:
                pipe.ends[other].sendall(data)
                return
        except OSError:
            pass
        self._forget(pipe)
        pipe.close()

    def _drop(self, *, reset: bool) -> None:
        for pipe in list(self._pipes):
            self._forget(pipe)
            pipe.close(reset=reset)

    def _forget(self, pipe: _Pipe) -> None:
        for direction in BOTH:
            if direction not in pipe.frozen:
                self._selector.unregister(pipe.ends[direction])
        self._pipes.remove(pipe)

    def _freeze(self, directions: tuple[Direction, ...]) -> None:
        for pipe in self._pipes:
            for direction in directions:
                if direction not in pipe.frozen:
                    pipe.frozen.add(direction)
                    self._selector.unregister(pipe.ends[direction])

    def _thaw(self) -> None:
        for pipe in self._pipes:
            for direction in tuple(pipe.frozen):
                pipe.frozen.discard(direction)
                self._watch(pipe, direction)
