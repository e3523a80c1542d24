"""The enrollment controller: workers and tokens.

Makes true: a worker's record says whether its socket is there and what people asked of it; a token
past its time or revoked is final, and cuts the workers it let in; where probes are asked for, a
worker that none has shown to work is `unverified` and probed. Reads tokens, workers, their desired
files, the open sockets and the records of probes; alone writes workers and tokens, and creates and
removes what probes need. Woken by those. It must never create anything for a client whose token was
not redeemed first (promise 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from controllers.asked import asked
from controllers.controller import Wait
from controllers.ports import SessionInfo, WorkerLink
from controllers.probes import Probes, Verification, needs_probe, verified_before
from controllers.token_secret import is_secret
from controllers.workqueue import WorkQueue
from datastore.clock import Clock, parse_stamp, stamp
from datastore.errors import NotFound, SwampError
from datastore.kinds import (
    LEASES,
    PENDING,
    TOKENS,
    WORKERS,
    Token,
    TokenSpec,
    TokenStatus,
    Worker,
    WorkerSpec,
    WorkerStatus,
)
from datastore.kinds.dispatch_name import is_probe
from datastore.kinds.machine_name import machine_name
from datastore.kinds.secret_hash import secret_hash
from datastore.record import Record
from datastore.store import Store

EXPIRY_LOOK_MOST_S = 3600.0
"""Expiry is wall time: it is looked at again at least this often, in case the clock was set."""

SHOWN_MOST = 10
"""Names listed in one error; of more, those that are near to the one asked for."""


class EnrollmentRefused(SwampError):
    """Why a worker may not enroll. Permanent ones end the worker; it retries after the others."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        permanent: bool = True,
        retry_after_ms: int = 0,
        grace_s: float = 0.0,
        cancel: Sequence[str] = (),
    ) -> None:
        """What it runs may go on for `grace_s`, 0 puts off nothing; it is to stop `cancel`."""
        super().__init__(message)
        self.code = code
        self.permanent = permanent
        self.retry_after_ms = retry_after_ms
        self.grace_s = grace_s
        self.cancel = list(cancel)


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a worker says it is."""

    token: str
    instance: str
    machine: str
    platform: str
    arch: str
    version: str
    capacity: int
    labels: dict[str, str] = field(default_factory=dict)


def worker_name(token: Token, machine: str) -> str:
    """A single token's worker has its name; a fleet token names each machine, stably."""
    if token.spec.max_enrollments == 1:
        return token.name
    return machine_name(token.name, machine)


@dataclass(frozen=True, slots=True)
class Made:
    """The id and the moment of something new."""

    uid: str
    at: datetime


def create_token(store: Store, name: str, spec: TokenSpec, secret: str, made: Made) -> Token:
    """A new token; AlreadyExists if the name is taken."""
    status = TokenStatus(state="unused", secret_hash=secret_hash(secret))
    token = Record(
        kind=TOKENS, name=name, uid=made.uid, created_at=stamp(made.at), spec=spec, status=status
    )
    store.commit([token])
    return store.get(TOKENS, name)


def token_named(store: Store, name: str) -> Token:
    """The token; NotFound with the names there are."""
    token = store.find(TOKENS, name)
    if token is None:
        names = sorted(store.names(TOKENS))
        shown = names if len(names) <= SHOWN_MOST else get_close_matches(name, names, SHOWN_MOST)
        known = ", ".join(shown) or (f"{len(names)} others" if names else "none")
        raise NotFound(f"no enrollment token '{name}'; there are: {known}")
    return token


def revoke_token(store: Store, name: str, now: datetime) -> tuple[Token, bool]:
    """The token, revoked, and whether this call did it; NotFound without it. Ends are final."""
    token = token_named(store, name)
    if token.status is None or not token.live:
        return token, False
    _end_token(store, token, "revoked", now)
    return store.get(TOKENS, name), True


def _end_token(store: Store, token: Token, state: str, now: datetime) -> None:
    assert token.status is not None
    status = token.status.model_copy(update={"state": state, "ended_at": stamp(now)})
    ended = token.with_status(status)
    if state == "revoked":
        ended = ended.with_spec(revoked=True)
    store.commit([ended])


class EnrollmentController:
    """Reconciles workers and tokens; keys are `<folder>/<name>`."""

    def __init__(
        self,
        store: Store,
        link: WorkerLink,
        clock: Clock,
        new_uid: Callable[[], str],
        verification: Verification | None = None,
    ) -> None:
        self.queue = WorkQueue()
        verification = verification or Verification()
        self._verify_on_enroll = verification.on_enroll
        self.probes = Probes(store, clock, new_uid, verification.evidence)
        self._store = store
        self._link = link
        self._clock = clock
        self._new_uid = new_uid
        self._told_to_drain: dict[str, int] = {}
        """By worker, the number of the socket on which it was told."""
        store.watch(WORKERS, lambda name: self.queue.add(f"workers/{name}"))
        store.watch(TOKENS, lambda name: self.queue.add(f"tokens/{name}"))
        store.watch(PENDING, self._dispatch_changed)
        store.watch(LEASES, self._dispatch_changed)

    def live_keys(self) -> Iterable[str]:
        names = {*self.probes.workers(), *(worker.name for worker in self._store.live(WORKERS))}
        workers = (f"workers/{name}" for name in sorted(names))
        tokens = (f"tokens/{token.name}" for token in self._store.live(TOKENS))
        return [*tokens, *workers]

    def session_changed(self, worker: str) -> None:
        """The worker's socket opened or closed."""
        self.queue.add(f"workers/{worker}")

    def _dispatch_changed(self, name: str) -> None:
        worker = self.probes.worker_of(name) if is_probe(name) else None
        if worker is not None:
            self.queue.add(f"workers/{worker}")

    async def reconcile(self, key: str) -> Wait | None:
        folder, _, name = key.partition("/")
        if folder == "tokens":
            return self._look_at_token(name)
        self._look_at_worker(name)
        self._look_at_probe(name)
        return None

    # -- enrolling -------------------------------------------------------------------------------

    def redeem(self, hello: Hello) -> Token:
        """The token behind the worker's credential; EnrollmentRefused says why there is none."""
        name, dot, secret = hello.token.partition(".")
        token = self._store.find(TOKENS, name) if dot else None
        if token is None or token.status is None:
            raise EnrollmentRefused("token_not_found", f"enrollment token '{name}' does not exist")
        # Before anything else is told: what became of a token is for those who have its secret.
        if not is_secret(secret, token.status.secret_hash):
            raise EnrollmentRefused(
                "token_mismatch", f"the secret does not match enrollment token '{name}'"
            )
        if token.status.state == "revoked" or self._desires_revocation(token):
            raise EnrollmentRefused("token_revoked", f"enrollment token '{name}' has been revoked")
        if token.status.state == "expired" or self._expired(token):
            raise EnrollmentRefused(
                "token_expired",
                f"enrollment token '{name}' has expired ({token.spec.expires_at})",
            )
        return token

    def expected_name(self, hello: Hello) -> str:
        """The name that the worker would enroll under; EnrollmentRefused as for `enroll`."""
        return self._allowed(self.redeem(hello), hello)

    def has_met(self, hello: Hello) -> bool:
        """Whether the worker has a record already; EnrollmentRefused as for `enroll`."""
        return self._store.has(WORKERS, self.expected_name(hello))

    def enroll(self, hello: Hello) -> Worker:
        """Redeem the token, then bind or renew the worker's record: one commit, in one `def`."""
        token = self.redeem(hello)
        assert token.status is not None
        name = self._allowed(token, hello)
        known = self._store.find(WORKERS, name)
        bound = known is not None and known.status is not None
        puts: list[Record[Any, Any]] = [self._worker_record(name, known, hello, token)]
        if not bound:
            status = token.status.model_copy(
                update={"state": "enrolled", "enrollments": token.status.enrollments + 1}
            )
            puts.append(token.with_status(status))
        self._store.commit(puts)
        return self._store.get(WORKERS, name)

    def _allowed(self, token: Token, hello: Hello) -> str:
        """The name of the machine's worker; EnrollmentRefused where the token has no room."""
        assert token.status is not None
        name = worker_name(token, hello.machine)
        known = self._store.find(WORKERS, name)
        if known is not None and known.status is not None:
            if (known.status.token, known.status.machine) == (token.name, hello.machine):
                return name
            raise EnrollmentRefused(
                "enrollment_allowance_exhausted",
                f"the enrollment allowance of token '{token.name}' is exhausted:"
                f" worker '{name}' is bound to another machine",
            )
        most = token.spec.max_enrollments
        if most != "unlimited" and token.status.enrollments >= most:
            raise EnrollmentRefused(
                "enrollment_allowance_exhausted",
                f"the enrollment allowance of token '{token.name}' is exhausted"
                f" ({token.status.enrollments} of {most} used)",
            )
        return name

    def _worker_record(self, name: str, known: Worker | None, hello: Hello, token: Token) -> Worker:
        now = stamp(self._clock.now())
        labels = dict(hello.labels)
        if token.spec.max_enrollments != 1:
            labels.setdefault("fleet", token.name)
        verified_at = verified_before(known, hello.instance)
        unverified = self._verify_on_enroll and verified_at is None
        status = WorkerStatus(
            state="unverified" if unverified else "connected",
            instance=hello.instance,
            machine=hello.machine,
            token=token.name,
            labels=labels,
            platform=hello.platform,
            arch=hello.arch,
            version=hello.version,
            capacity=hello.capacity,
            enrolled_at=now,
            last_seen_at=now,
            verified_at=verified_at,
        )
        if known is None:
            fresh = Record(
                kind=WORKERS,
                name=name,
                uid=self._new_uid(),
                created_at=now,
                owner=token.name,
                spec=WorkerSpec(),
                status=status,
            )
            return self._with_desired(fresh)
        return self._with_desired(known.with_status(status))

    def draining(self, name: str) -> None:
        """The worker takes nothing more; it stays so until it enrolls again."""
        worker = self._store.find(WORKERS, name)
        if worker is not None and worker.status is not None and not worker.status.draining:
            status = worker.status.model_copy(update={"draining": True})
            self._store.commit([worker.with_status(status)])

    def all_gone(self) -> None:
        """This process stops: no worker is connected to it any more."""
        self.probes.leave("the server stops")
        for worker in self._store.live(WORKERS):
            self._look_at_worker(worker.name)

    # -- workers ---------------------------------------------------------------------------------

    def _look_at_worker(self, name: str) -> None:
        worker = self._store.find(WORKERS, name)
        if worker is None or worker.status is None:
            return
        changed = self._with_desired(worker)
        status = changed.status
        assert status is not None
        session = self._link.session(name)
        self._tell_drain(changed, session)
        if worker.live and session is None:
            now = stamp(self._clock.now())
            gone = {"state": "disconnected", "disconnected_at": now, "last_seen_at": now}
            changed = changed.with_status(status.model_copy(update={**gone, "draining": False}))
        if changed != worker:
            self._store.commit([changed])

    # -- probes ----------------------------------------------------------------------------------

    def _look_at_probe(self, name: str) -> None:
        """Take over the verdict of a probe that has ended; begin one that is needed."""
        worker = self._store.find(WORKERS, name)
        session = self._link.session(name)
        ended = self.probes.look(name, session)
        if ended is not None:
            puts = [ended.shown_by(worker, self._clock.now())] if worker else []
            self._store.commit(puts, removals=ended.records)
            self.probes.tell(name, ended)
            worker = self._store.find(WORKERS, name)
        if worker and name not in self.probes and needs_probe(worker, session):
            self.probes.start(worker)

    def _tell_drain(self, worker: Worker, session: SessionInfo | None) -> None:
        """Once per socket while it is asked: a worker that comes back is told again."""
        if session is None or not worker.spec.drain:
            self._told_to_drain.pop(worker.name, None)
        elif self._told_to_drain.get(worker.name) != session.number:
            self._told_to_drain[worker.name] = session.number
            note = f": {worker.spec.note}" if worker.spec.note else ""
            self._link.drain(worker.name, f"drained by an operator{note}")

    def _with_desired(self, worker: Worker) -> Worker:
        """The worker with what its desired file asks; what that leaves out is as by default."""
        status = worker.status
        file = self._store.desired(WORKERS, worker.name)
        news = None if status is None else asked(file, status.desired)
        if status is None or news is None:
            return worker
        worker = worker.with_status(status.model_copy(update={"desired": news.note}))
        return worker if news.spec is None else replace(worker, spec=WorkerSpec(**news.spec))

    # -- tokens ----------------------------------------------------------------------------------

    def _look_at_token(self, name: str) -> Wait | None:
        token = self._store.find(TOKENS, name)
        if token is None or token.status is None:
            return None
        if token.live:
            self._adopt_desired(token)
            token = self._store.get(TOKENS, name)
        if not token.live:
            self._cut_workers_of(name)
            return None
        left_s = (parse_stamp(token.spec.expires_at) - self._clock.now()).total_seconds()
        if left_s > 0:
            return Wait(min(left_s, EXPIRY_LOOK_MOST_S))
        _end_token(self._store, token, "expired", self._clock.now())
        self._cut_workers_of(name)
        return None

    def _adopt_desired(self, token: Token) -> None:
        """Take over what the token's desired file asks; what that leaves out stays as it is."""
        assert token.status is not None
        news = asked(self._store.desired(TOKENS, token.name), token.status.desired)
        if news is None:
            return
        changes: dict[str, Any] = {"desired": news.note}
        if news.spec is not None and news.spec.get("revoked"):
            changes |= {"state": "revoked", "ended_at": stamp(self._clock.now())}
        changed = token.with_status(token.status.model_copy(update=changes))
        self._store.commit([changed.with_spec(**(news.spec or {}))])

    def _desires_revocation(self, token: Token) -> bool:
        file = self._store.desired(TOKENS, token.name)
        return file is not None and file.spec.get("revoked") is True

    def _expired(self, token: Token) -> bool:
        return parse_stamp(token.spec.expires_at) <= self._clock.now()

    def _cut_workers_of(self, token: str) -> None:
        for worker in self._store.live(WORKERS):
            if worker.status is not None and worker.status.token == token:
                self._link.cut(worker.name, f"enrollment token '{token}' has ended")
