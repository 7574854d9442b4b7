"""Latch for threads: the class that users call, with the docstrings that they read."""

from typing import Never

from relock._core.flows import latch as latch_flows
from relock._core.flows.latch import LatchInfo
from relock._latches import LatchHandle
from relock._owner import LATCH_MARK
from relock.lock import NOT_PASSED, longest_wait


class Latch(LatchHandle):
    """Distributed latch: closed until so many parties have arrived, then open. Made by `Client.latch`.

    A latch opens once, and stays open until its ttl is over, which counts from the last arrival. It holds nobody out
    and has no lease. Arrivals that are forgotten, by a server without persistence that restarts, can only keep it
    closed.
    """

    __slots__ = ()

    def arrive(self, party: str | None = None) -> int:
        """Arrive at the latch. The same party may do so again: it counts once.

        Args:
            party: the party's name, any non-empty str, so that a job which runs twice counts once. Default None: each
                call is a party of its own.

        Returns:
            How many parties are missing, at most; 0 once the latch is open.

        Raises:
            QuorumError: too few masters have noted it. It may count nevertheless; to be sure, repeat it with its name.
            ConfigurationError: others want another number of parties; a name that can't be.
            TypeError: a name that is no str.
            ClientClosedError: the client is closed.
        """
        session = self._client._session
        missing = session.run(latch_flows.arrive(self._spec, self._party(party, session.hub), session.clock))
        session.raise_pending_warnings()
        return self._missing(missing)

    def wait(self, timeout: float = NOT_PASSED) -> bool:
        """Wait until the latch is open.

        Args:
            timeout: longest wait in seconds, 0 to `threading.TIMEOUT_MAX`; -1, the default: as long as it takes.

        Returns:
            True once the latch is open, False if it was not in that time.

        Raises:
            QuorumError: too few masters answered, and ``patience`` or the timeout is over.
            ConfigurationError: others want another number of parties.
            ValueError, OverflowError, TypeError: as `Lock.acquire`.
            ClientClosedError: the client is closed.
        """
        session = self._client._session
        until = session.clock() + longest_wait(float("inf"), True, timeout)
        waiter = next(session.hub.names) + LATCH_MARK
        try:
            flow = latch_flows.wait(self._spec, waiter, until, session.clock, session.platform.chance)
            missing = session.run(flow)
        finally:
            session.hubs.forget(waiter)
        session.raise_pending_warnings()
        return self._missing(missing) == 0

    def missing(self) -> int:
        """Return how many parties are missing; 0 once the latch is open.

        Raises:
            QuorumError: too few masters answered.
        """
        return self.info().missing

    def info(self) -> LatchInfo:
        """Return which parties have arrived.

        Raises:
            QuorumError: too few masters answered.
        """
        session = self._client._session
        replies = session.run(latch_flows.look(self._spec, session.clock))
        session.raise_pending_warnings()
        return self._state(replies)

    def __reduce__(self) -> Never:
        raise TypeError("a Latch can't be pickled: make one of a client in each process")
