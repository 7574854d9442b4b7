"""Waiter's side of a hand-off in one hop: a releaser's script has given the lock to the waiter, and a message said so.

The lease is short: if the message is lost, the lock is blocked until the lease ends. The watchdog asks for the full
lease after `relock._core.hold.HANDED_SETTLE_SECONDS`, if the hold still exists by then.
"""

from collections.abc import Generator, Sequence
from typing import Any

from relock._core.effects import Clock, Effect, Handed
from relock._core.flows.attempt import write_token
from relock._core.lock_spec import LockSpec, lease_ms
from relock._core.quorum import Grant, is_token_safe, judge_handed


def accept(
    spec: LockSpec, grants: Sequence[Handed], clock: Clock, until: float
) -> Generator[Effect, Any, Grant | None]:
    """Accept the hold of `grants`, which have one name, and return it; None if the caller must give it back.

    `until` is when the caller gives up.
    """
    granted = judge_handed(grants, spec.masters, spec.quorum, clock(), ttl=spec.ttl, drift_factor=spec.drift_factor)
    if granted is None or len(spec.masters) == 1:
        return granted
    if is_token_safe(granted, lease_ms(min(grant.lease for grant in grants))):
        return granted
    failed = yield from write_token(spec, granted.token, granted.end, clock, until)
    return None if failed else granted
