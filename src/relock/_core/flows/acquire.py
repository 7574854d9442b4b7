"""The outermost acquire: one attempt on all masters."""

from collections.abc import Generator

from relock._core.effects import Ask, Clock, Effect
from relock._core.flows.ask import first_of_each
from relock._core.quorum import Granted, Outcome, is_status, judge
from relock._core.terms import Terms
from relock._scripts import Call, load

ALIVE_SECONDS = 7.0  # a waiter counts as alive for so long after a sign of life
SIGN_OF_LIFE_SECONDS = 2.5  # so that a lost wake-up costs less than 3 s, and a stopped waiter less than 10 s
QUEUE_SECONDS = 30.0  # what is left of a queue when everybody is gone goes after that time
ATTEMPTS_PER_LOOK = 3  # how often a request that came too late is sent again at once, with a new clock sample


def attempt(
    terms: Terms, owner: bytes, count: int, clock: Clock, *, queue: bool, until: float
) -> Generator[Effect, object, Outcome]:
    """Asks all masters once for the lock; with `queue`, for a place in the queue if it can't be had now.

    Args:
        terms: what is asked.
        owner: ``<client>:<uuid>`` of this acquire.
        count: the hold count to begin with.
        clock: the local clock.
        queue: whether to queue. The caller must listen by then.
        until: when whoever needs the answer gives up on silent masters, if that is before the node timeout.
    """
    call = _call(terms, owner, count, queue=queue)
    for _ in range(ATTEMPTS_PER_LOOK):
        sent_at = clock()
        answers = first_of_each((yield Ask((call,), min(until, sent_at + terms.node_timeout))))
        outcome = judge(answers, terms.masters, sent_at + terms.validity, clock())
        if isinstance(outcome, Granted) or not any(is_status(answer, b"void") for answer in answers):
            break
    return outcome


def _call(terms: Terms, owner: bytes, count: int, *, queue: bool) -> Call:
    if queue:
        return load("enqueue").call(
            terms.keys,
            owner=owner,
            count=count,
            lease_ms=terms.lease_ms,
            fair=terms.fair,
            alive_ms=int(ALIVE_SECONDS * 1000),
            queue_ms=int(QUEUE_SECONDS * 1000),
        )
    return load("acquire").call(terms.keys, owner=owner, count=count, lease_ms=terms.lease_ms, fair=terms.fair)
