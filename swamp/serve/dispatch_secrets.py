"""What only one dispatch may know, from its start to its end: its credential, and secrets.

Makes true: secrets are read when a dispatch leaves and kept in memory only, to mask them in all
that comes back and to know them in its outputs; after a restart they are read again for what still
runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from controllers.expression_references import SecretRef, secrets_in
from datastore.errors import NotFound, SwampError
from datastore.kinds import Call, Pending
from datastore.regular_file import NO_FILE_MORE
from swamp.execute.redaction import Redactor, SecretScan
from swamp.execute.secret_arguments import filled
from swamp.protocol import Dispatch
from swamp.serve.credentials import Credentials
from swamp.traces import EXECUTION, trace_environment

log = logging.getLogger(__name__)

_TRIES_S = (0.1, 0.3, 1.0)
"""How long to wait before secrets are read again, when no file more may be open."""

ReadSecret = Callable[[str, str], str]
"""The value of a key of a vault; SwampError without it. Blocks."""


def no_vaults(vault: str, key: str) -> str:
    """There are no vaults."""
    raise NotFound(f"no vault '{vault}'")


@dataclass(frozen=True, slots=True)
class Opened:
    """A call as its runner gets it."""

    call: Call = field(repr=False)
    credential: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def frame(
        self, pending: Pending, environment: Mapping[str, str], *, traced: bool = False
    ) -> Dispatch:
        """What the worker is told of the dispatch; with `traced` its runner joins our trace."""
        spec = pending.spec
        trace = trace_environment(pending.name, EXECUTION) if traced else {}
        return Dispatch(
            dispatch=pending.name,
            run=spec.run,
            workflow=spec.workflow,
            job=spec.job,
            step=spec.step,
            call=self.call,
            timeout_s=spec.timeout_s,
            environment={**environment, **trace},
            credential=self.credential,
            secrets=list(self.secrets),
        )


class DispatchSecrets:
    """Use it from the event loop; what blocks says so."""

    def __init__(
        self, credentials: Credentials | None = None, read: ReadSecret = no_vaults
    ) -> None:
        self._credentials = credentials
        self._read = read
        self._redactors: dict[str, Redactor] = {}
        self._values: dict[str, dict[SecretRef, str]] = {}

    def open(self, dispatch: str, call: Call) -> Opened:
        """The call with its secrets; SwampError without one of them. Blocks if it asks for any."""
        asked = secrets_in(call.arguments)
        values = {ref: self._patiently(ref) for ref in asked}
        credential = self._credentials.of(dispatch) if self._credentials is not None else ""
        secrets = tuple(values.values())
        if secrets:
            self._values[dispatch] = values
            self._redactors[dispatch] = Redactor([*secrets, credential])
        return Opened(filled(call, values) if asked else call, credential, secrets)

    def open_then(
        self, dispatch: str, call: Call, then: Callable[[Opened | SwampError], None]
    ) -> None:
        """Call `then` with the opened call, or why there is none: later if secrets are read."""
        if not secrets_in(call.arguments):
            then(self.open(dispatch, call))
            return

        def have_read(read: asyncio.Future[Opened | SwampError]) -> None:
            if read.cancelled():
                return
            error = read.exception()
            if error is not None:
                # Else nobody would ever hear of the dispatch again.
                log.error("the secrets of %s cannot be read", dispatch, exc_info=error)
            fault = SwampError(f"its secrets cannot be read: {error!r}")
            then(read.result() if error is None else fault)

        reading = asyncio.get_running_loop().run_in_executor(None, self._try, dispatch, call)
        reading.add_done_callback(have_read)

    def reopen(self, calls: Mapping[str, Call]) -> None:
        """Know the secrets of dispatches that an earlier process started. Blocks."""
        for dispatch, call in calls.items():
            opened = self._try(dispatch, call)
            if isinstance(opened, SwampError):
                log.warning(
                    "its worker alone knows the secrets in the output of %s: %s", dispatch, opened
                )

    def check(self, call: Call) -> None:
        """SwampError when the call asks for what is not there. Blocks if it asks for any.

        OSError where it may be had a moment later.
        """
        asked = secrets_in(call.arguments)
        if asked:
            filled(call, {ref: self._value(ref) for ref in asked})

    def redactor(self, dispatch: str) -> Redactor:
        """Masks what the dispatch may know."""
        known = self._redactors.get(dispatch)
        if known is None:
            mine = [self._credentials.of(dispatch)] if self._credentials is not None else []
            known = self._redactors[dispatch] = Redactor(mine)
        return known

    def scan(self, dispatch: str) -> SecretScan:
        """Knows what the dispatch may know in one of its outputs."""
        known = {
            f"the secret '{ref.key}' of vault '{ref.vault}'": value
            for ref, value in self._values.get(dispatch, {}).items()
        }
        if self._credentials is not None:
            known["the credential of its dispatch"] = self._credentials.of(dispatch)
        return SecretScan(known)

    def forget(self, dispatch: str) -> None:
        """The dispatch has ended."""
        self._redactors.pop(dispatch, None)
        self._values.pop(dispatch, None)

    def _try(self, dispatch: str, call: Call) -> Opened | SwampError:
        try:
            return self.open(dispatch, call)
        except SwampError as error:
            return error

    def _patiently(self, ref: SecretRef) -> str:
        """As `_value`, but what may be had a moment later is given that moment."""
        for wait_s in _TRIES_S:
            with suppress(OSError):
                return self._value(ref)
            time.sleep(wait_s)
        try:
            return self._value(ref)
        except OSError as error:
            raise _without(ref, error) from None

    def _value(self, ref: SecretRef) -> str:
        try:
            return self._read(ref.vault, ref.key)
        except OSError as error:
            if error.errno in NO_FILE_MORE:
                raise
            raise _without(ref, error) from None
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            # A vault that is damaged in a way that nobody foresaw. Its words may have the secret.
            what = f"its vault is damaged ({type(error).__name__})"
            raise SwampError(f"secret '{ref.key}' of vault '{ref.vault}': {what}") from None


def _without(ref: SecretRef, error: OSError) -> SwampError:
    reason = error.strerror or str(error)
    return SwampError(f"secret '{ref.key}' of vault '{ref.vault}': {reason}")
