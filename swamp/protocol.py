"""Every frame between the orchestrator and its workers, defined once for both ends.

Frames are JSON objects with a `type`; a value of another type than the field's is no value for it:
"8" and true are no numbers. A change of any frame, or of the environment denylist,
changes `PROTOCOL_VERSION`; a worker of another version is refused at enrollment, both named.

A message of the socket has one frame, or several, one per line: what is due at the same moment goes
together. A message costs each end more than a frame does. `enroll` comes in a message of its own.

The order on a socket: `enroll` → `enrolled` (or `enroll_refused` and the socket closes). Then, for
each dispatch: `dispatch` → `accepted` or `refused`; after `accepted` any number of `output`, and
one `result`, which the worker keeps until its `ack`. `ping` → `pong` in both directions.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from datastore.errors import SwampError
from datastore.kinds import Call, Outcome
from datastore.kinds.machine_name import machine_name
from datastore.kinds.secret_hash import proof_of, secret_hash
from datastore.record import Model

PROTOCOL_VERSION = 6

DATA_PATH = "/api/v1/data"
"""Where steps put their outputs, below the address that a worker dialled."""

DEATH_PATH = "/api/v1/workers/{name}/death"
"""Where a worker's guard tells that the worker's process has died."""

WORKER_HEADER = "Swamp-Worker"
PROOF_HEADER = "Swamp-Worker-Proof"
"""Of a worker that dials: see `calling_card`."""

DATA_URL_VARIABLE = "SWAMP_DATA_URL"
DATA_TOKEN_VARIABLE = "SWAMP_DATA_TOKEN"
CA_VARIABLE = "SWAMP_CA_CERT"
"""A PEM file of the authorities to trust: of workers, and told on to their steps."""

FRAME_MAX_BYTES = 4 << 20
"""A longer message is refused by both ends."""

TOGETHER_BYTES = 16 << 10
"""A message that is as long as this gets no more frames."""

TOGETHER_MOST = 1_000
"""Frames of one message, as they are all taken at once; more than fit by the rule before."""

DRAIN_REASON_MAX = 200

CAPACITY_MAX = 4096
"""The most slots that a worker may have."""

OUTPUT_CHUNK_BYTES = 64 << 10
"""The most output in one frame, in bytes of the stream."""

ENVIRONMENT_DENYLIST = frozenset(
    {
        "HOME", "USER", "USERNAME", "USERPROFILE", "LOGNAME", "SHELL", "PATH", "PWD", "OLDPWD",
        "TMPDIR", "TEMP", "TMP", "HOSTNAME", "TERM", "SHLVL", "_",
    }
)  # fmt: skip
"""Names that identify a process or a machine: never shipped, never overridden (upper case)."""

ENVIRONMENT_DENIED_PREFIXES = ("XDG_", "SWAMP_", "SSH_", "LD_")


class FrameError(SwampError):
    """A frame that is not one of ours."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters only")
    return text


Shown = Annotated[str, AfterValidator(_printable)]
"""A text of a worker that people will see: nothing in it that a terminal obeys."""

Label = Annotated[Shown, Field(max_length=256)]


class Enroll(Model):
    """The first frame of a worker. `instance` is new per process, `machine` per cache folder."""

    type: Literal["enroll"] = "enroll"
    protocol: int
    version: Shown = Field(max_length=64)
    token: Shown = Field(max_length=512)
    instance: Shown = Field(min_length=1, max_length=64)
    machine: Shown = Field(min_length=1, max_length=128)
    platform: Shown = Field(max_length=32)
    arch: Shown = Field(max_length=32)
    labels: dict[Label, Label] = Field(default_factory=dict, max_length=64)
    capacity: int = Field(ge=1, le=CAPACITY_MAX)
    running: list[str] = Field(default_factory=list, max_length=8192)
    """Dispatches whose runner is alive here."""
    finished: list[str] = Field(default_factory=list, max_length=8192)
    """Dispatches whose result was not acknowledged yet; the results follow."""
    dial: int = Field(default=0, ge=0)
    """As many sockets as the machine had dialled before, or more: the larger one is the newer."""


class Accepted(Model):
    """The runner of a dispatch has been started."""

    type: Literal["accepted"] = "accepted"
    dispatch: str


class Refused(Model):
    """The worker does not take this dispatch; nothing was started."""

    type: Literal["refused"] = "refused"
    dispatch: str
    reason: Literal["worker_busy", "worker_draining"]


class Output(Model):
    """A piece of a stream. `seq` counts the pieces of one dispatch from 1, without gaps.

    `text` when the piece is valid UTF-8, else `data` (base64).
    """

    type: Literal["output"] = "output"
    dispatch: str
    seq: int = Field(ge=1, le=1 << 53)
    stream: Literal["stdout", "stderr"]
    text: str | None = None
    data: str | None = None

    @field_validator("data")
    @classmethod
    def _is_base64(cls, data: str | None) -> str | None:
        base64.b64decode(data or "", validate=True)
        return data

    def raw(self) -> bytes:
        """The bytes of the stream."""
        if self.text is not None:
            return self.text.encode()
        return base64.b64decode(self.data or "")


class ResultFrame(Model):
    """How a dispatch ended; sent again after each reconnect until it is acknowledged."""

    type: Literal["result"] = "result"
    dispatch: str
    outcome: Outcome


class Drain(Model):
    """From the worker: give me nothing more. From the orchestrator: take nothing more."""

    type: Literal["drain"] = "drain"
    reason: str = Field(default="", max_length=DRAIN_REASON_MAX)


class Ping(Model):
    """Answer with a pong of the same number."""

    type: Literal["ping"] = "ping"
    n: int


class Pong(Model):
    type: Literal["pong"] = "pong"
    n: int


class Enrolled(Model):
    """The worker is known by this name. `keep` and `kill` settle the two lists of dispatches.

    `keep` maps a dispatch to the number of output pieces that the orchestrator has: the worker goes
    on after them. The runners in `kill` have no lease any more.
    """

    type: Literal["enrolled"] = "enrolled"
    worker: str
    grace_s: float
    """How long the worker may be cut off before it kills its runners, seconds."""
    heartbeat_s: float
    keep: dict[str, int] = Field(default_factory=dict)
    kill: list[str] = Field(default_factory=list)
    death_credential: str = Field(default="", repr=False)
    """Lets whoever outlives this process tell that it has died."""


class EnrollRefused(Model):
    """Permanent refusals end the worker; others are tried again after `retry_after_ms`."""

    type: Literal["enroll_refused"] = "enroll_refused"
    code: str
    message: str
    permanent: bool
    retry_after_ms: int = 0
    grace_s: float = 0.0
    """For so long, from when it asked, all that the worker runs may go on, as its leases are kept.
    Seconds; 0 says nothing of that, and puts off nothing."""
    cancel: list[str] = Field(default_factory=list)
    """Of what it runs: to be stopped, as nobody waits for it any more."""


class Dispatch(Model):
    """Execute this. The environment goes over the worker's own, the denylist excepted."""

    type: Literal["dispatch"] = "dispatch"
    dispatch: str
    run: str
    workflow: str
    job: str
    step: str
    call: Call
    timeout_s: float | None = None
    """The step's own time limit, seconds."""
    environment: dict[str, str] = Field(default_factory=dict)
    credential: str = Field(default="", repr=False)
    """Lets the runner put outputs while the lease lives."""
    secrets: list[str] = Field(default_factory=list, repr=False)
    """Values that `call` holds and nobody may see: `***` in all that the worker sends back."""


class Cancel(Model):
    """Stop the runner of this dispatch; its result still comes."""

    type: Literal["cancel"] = "cancel"
    dispatch: str


class Ack(Model):
    """The result is durable; forget it."""

    type: Literal["ack"] = "ack"
    dispatch: str


class OutputAck(Model):
    """All output of the dispatch up to this piece has been stored."""

    type: Literal["output_ack"] = "output_ack"
    dispatch: str
    seq: int


FromWorker = Enroll | Accepted | Refused | Output | ResultFrame | Drain | Ping | Pong
ToWorker = Enrolled | EnrollRefused | Dispatch | Cancel | Ack | OutputAck | Drain | Ping | Pong

_FROM_WORKER: TypeAdapter[FromWorker] = TypeAdapter(
    Annotated[FromWorker, Field(discriminator="type")]
)
_TO_WORKER: TypeAdapter[ToWorker] = TypeAdapter(Annotated[ToWorker, Field(discriminator="type")])


def encode(frame: FromWorker | ToWorker) -> str:
    """The frame as JSON text."""
    return frame.model_dump_json(by_alias=True, exclude_none=True)


def frames_in(message: str) -> list[str]:
    """The texts of the frames of a message; FrameError if these are too many."""
    found = message.split("\n", TOGETHER_MOST)
    if len(found) > TOGETHER_MOST:
        raise FrameError(f"a message of more than {TOGETHER_MOST} frames")
    return found


def message_of(frames: Iterable[str]) -> str:
    """The message of these frames' texts."""
    return "\n".join(frames)


def next_message(due: deque[str]) -> str:
    """The message of those at the front that go together, at least of one; it takes them."""
    texts = [due.popleft()]
    size = len(texts[0])
    while due and (size := size + len(due[0])) < TOGETHER_BYTES:
        texts.append(due.popleft())
    return message_of(texts)


def calling_card(token: str, machine: str) -> dict[str, str]:
    """The headers with which a worker dials: the names that it may have at the orchestrator, and
    what shows that it has the token's secret.

    By them known workers go before new ones, and these before whoever shows nothing, as long as
    nothing is said on the socket. Nothing else depends on them.
    """
    name, _, secret = token.partition(".")
    names = f"{name}, {machine_name(name, machine)}"
    return {WORKER_HEADER: names, PROOF_HEADER: proof_of(secret_hash(secret), names)}


def from_worker(text: str | bytes) -> FromWorker:
    """The worker's frame in this text; FrameError says what is wrong with it."""
    try:
        return _FROM_WORKER.validate_json(text, strict=True)
    except ValidationError as error:
        raise FrameError(_plainly(error)) from None


class _Version(BaseModel):
    """What the first frame of every version says."""

    type: Literal["enroll"]
    protocol: int
    version: Shown = Field(max_length=64)


def other_version(text: str | bytes) -> tuple[int, str] | None:
    """Protocol and version of a worker whose enroll frame is none of ours; None for garbage."""
    try:
        found = _Version.model_validate_json(text, strict=True)
    except ValidationError:
        return None
    return None if found.protocol == PROTOCOL_VERSION else (found.protocol, found.version)


def to_worker(text: str | bytes) -> ToWorker:
    """The orchestrator's frame in this text; FrameError says what is wrong with it."""
    try:
        return _TO_WORKER.validate_json(text, strict=True)
    except ValidationError as error:
        raise FrameError(_plainly(error)) from None


def _plainly(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "frame"
    # Words of the other end are in it: they may be long, or hold what a terminal obeys.
    problem = f"{where[:100]}: {first['msg'][:200]}"
    shown = problem if problem.isprintable() else ascii(problem)
    return f"not a frame of protocol {PROTOCOL_VERSION}: {shown}"


def ships(name: str) -> bool:
    """Whether an environment variable may travel from the orchestrator to a runner."""
    upper = name.upper()
    return upper not in ENVIRONMENT_DENYLIST and not upper.startswith(ENVIRONMENT_DENIED_PREFIXES)
