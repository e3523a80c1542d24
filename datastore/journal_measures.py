"""What the journal measures of itself: how long commits wait, how long a transaction takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datastore.meter import SIZES, About, Histogram


@dataclass(frozen=True, slots=True)
class Transaction:
    """When a transaction was begun and was on disk, by the monotonic clock, seconds."""

    began_s: float
    ended_s: float


class JournalMeasures:
    """The instruments of one journal, and which transaction is being acknowledged."""

    def __init__(self) -> None:
        self.records = Histogram(
            About("swamp_journal_batch_records", "Records of one transaction of the journal."),
            SIZES,
        )
        self.wait = Histogram(
            About("swamp_journal_wait_seconds", "How long a commit waited for its transaction.")
        )
        self.write = Histogram(
            About("swamp_journal_write_seconds", "How long a transaction took, sync included.")
        )
        self.acknowledged: Transaction | None = None
        """The one whose commits are told just now that they are durable; for the event loop."""

    def note(
        self, queued_s: Sequence[float], records: int, transaction: Transaction
    ) -> Callable[[], None]:
        """A transaction is on disk. Call the answer on the loop before its commits are told."""
        for one_s in queued_s:
            self.wait.observe(transaction.began_s - one_s)
        self.records.observe(records)
        self.write.observe(transaction.ended_s - transaction.began_s)

        def acknowledge() -> None:
            self.acknowledged = transaction

        return acknowledge
