"""Renewals: of one hold, because its owner asks, or of many, because the watchdog does."""

from collections.abc import Generator, Sequence

from relock._core.effects import Ask, Clock, Effect, Failure, Reply
from relock._core.flows.ask import nth_of_each
from relock._core.hold import Hold
from relock._core.quorum import drift_of, is_status
from relock._core.terms import lease_ms
from relock._scripts import load

ROUNDS = 2  # a second one, with a new clock sample, where the first came too late

Answers = list[Sequence[Reply | Failure]]


def extend(holds: Sequence[Hold], clock: Clock, node_timeout: float) -> Generator[Effect, object, Answers]:
    """Renews the leases of `holds` on all masters in one batch, and counts what they answered.

    Returns what each master said of each hold.
    """
    ttls = [hold.ttl for hold in holds]  # as they are sent: an owner may ask for a longer one meanwhile
    calls = tuple(
        load("extend").call(hold.keys, owner=hold.owner, lease_ms=lease_ms(ttl))
        for hold, ttl in zip(holds, ttls, strict=True)
    )
    for _ in range(ROUNDS):
        sent_at = clock()
        replies = yield Ask(calls, sent_at + node_timeout)
        answers: Answers = [nth_of_each(replies, i) for i in range(len(holds))]
        now = clock()
        for hold, ttl, answer in zip(holds, ttls, answers, strict=True):
            end = sent_at + ttl - drift_of(ttl, hold.drift_factor)
            hold.count_renewal(answer, sent_at, end, now)
        if not any(is_status(answer, b"void") for of_hold in answers for answer in of_hold):
            break
    return answers
