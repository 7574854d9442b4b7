"""Renewals that callers ask for: `Lock.extend`, and the full lease of a hold that was handed over."""

from collections.abc import Generator, Sequence
from typing import Any

from relock._core.call_record import Step
from relock._core.effects import Failure, Pause, Reply
from relock._core.flows.extend import extend as extend_flow
from relock._core.flows.extend import needs_healing
from relock._core.hold import Hold
from relock._core.quorum import is_status
from relock._runtime.session.keeper import Keeper

CONNECTING_SECONDS_MIN = 0.005  # before a master is asked again that was being connected; then twice as long


class Renewals:
    """Renewals of one session that callers ask for, as flows; the watchdog has flows of its own."""

    def __init__(self, session: Keeper) -> None:
        self._session = session

    def extend(self, hold: Hold, ttl: float | None) -> Generator[Step, Any, list[Failure] | None]:
        """Renew `hold` now. Return the failures if no quorum confirmed the renewal, None if one did.

        Raises:
            LockLostError: the hold was lost, before or by now.
        """
        session = self._session
        session.check_valid(hold)
        hold.ask_for(ttl or 0.0)
        answers = yield from self._renew(hold)
        if needs_healing(hold, answers):
            session.heal((hold,))
        session.check_valid(hold)
        session.watchdog.watch(hold)
        if sum(is_status(answer, b"extended") for answer in answers) >= session.quorum:
            return None
        return [answer for answer in answers if isinstance(answer, Failure)]

    def _renew(self, hold: Hold) -> Generator[Step, Any, Sequence[Reply | Failure]]:
        """Renew `hold`; return what the masters answer.

        Without a quorum they are asked again, for a node timeout, if a master that seems to be well could not be asked,
        because no connection to it was free.
        """
        session = self._session
        until, pause = session.clock() + session.node_timeout, CONNECTING_SECONDS_MIN
        while True:
            by_hold = yield from extend_flow((hold,), session.clock, session.node_timeout)
            answers = by_hold[0]
            confirmed = sum(is_status(answer, b"extended") for answer in answers)
            if confirmed >= session.quorum or not self._is_connecting(answers) or session.clock() + pause > until:
                return answers
            yield Pause(pause)
            pause *= 2

    def _is_connecting(self, answers: Sequence[Reply | Failure]) -> bool:
        """Return whether one of the masters could not be asked, though it is not known to be down."""
        unasked = [isinstance(answer, Failure) and not answer.sent for answer in answers]
        return any(master.down is None for master, missed in zip(self._session.masters, unasked, strict=True) if missed)

    def confirm(self, hold: Hold) -> Generator[Step, Any, float]:
        """Have the masters confirm the full lease of a hold that a releaser gave; return what then remains (s).

        A client that was closed asks no master any more.

        Raises:
            LockLostError: the hold was lost by now.
        """
        session = self._session
        if not session.closed:
            yield from extend_flow((hold,), session.clock, session.node_timeout, ends=True)
        session.check_valid(hold)
        return hold.remaining(session.clock())
