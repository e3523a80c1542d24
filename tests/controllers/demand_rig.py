"""Demand without a server: every part of it in one go."""

from __future__ import annotations

from datetime import datetime

from controllers.demand import Answer, Demand, Seen, answer, demand_of, waiting_in
from controllers.reasons import Reasons
from datastore.store import Store


def demand(store: Store, reasons: Reasons, now: datetime) -> list[Demand]:
    """Every requirement that something waits for, or runs under."""
    seen = Seen.now(store)
    waiting = waiting_in(seen, now)
    answers: dict[str, Answer] = {}
    for _ in answer(waiting, reasons, answers):
        pass
    return demand_of(seen, waiting, answers, {})
