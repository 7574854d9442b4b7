"""The waiter's side of a hand-off in one hop: a releaser's script has given it the lock, and a message said so.

The lease that it was given is short, because nobody would know of it if the message were lost. Whoever takes it asks
for the full lease at once, and does not wait for the answer: until that is read the hold is valid for the short one.
"""

from collections.abc import Generator, Sequence
from typing import Any

from relock._core.effects import Ask, Clock, Effect, Handed
from relock._core.flows.acquire import write_token
from relock._core.quorum import Extension, Granted, is_token_safe, judge_handed
from relock._core.terms import Terms, lease_ms


def accept(terms: Terms, grants: Sequence[Handed], clock: Clock) -> Generator[Effect, Any, Granted | None]:
    """Makes the hold of `grants`, which have one name, the caller's; None where that can't be: give it back then."""
    granted = judge_handed(grants, terms.masters, terms.drift_factor, clock())
    if granted is None:
        return None
    lease = min(grant.lease for grant in grants)
    if len(terms.masters) > 1 and not is_token_safe(granted, lease_ms(lease)):
        outcome = yield from write_token(terms, granted, clock)
        if not isinstance(outcome, Granted):
            return None
    if lease >= terms.ttl:
        return granted
    sent_at = clock()
    answers = yield Ask(
        (terms.wording.keep.call(terms.keys, grants[0].owner),), sent_at + terms.node_timeout, awaited=False
    )
    return granted._replace(extension=Extension(sent_at, sent_at + terms.validity, answers))
