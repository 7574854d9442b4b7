"""Several locks as one, for threads: the class that users call, with the docstrings that they read."""

import math
from collections.abc import Mapping
from typing import Never, Protocol

from relock._core.flows import inspect as inspect_flows
from relock._core.flows.inspect import LockInfo, MasterReplies
from relock._core.multi import acquire_all, release_all
from relock._core.together import together
from relock._holding import HasSession
from relock._holding_all import HoldingAll
from relock._options import check_seconds
from relock.lock import Door


class MultiLockClient(HasSession, Protocol):
    """Part of a client that its multi-locks use."""

    def _agree(self, name: str, answers: MasterReplies) -> LockInfo:
        """Return the lock's state by the `answers` to a look; raise `QuorumError` if too few masters answered."""

    def force_release(self, name: str) -> bool:
        """End any hold of the lock `name`."""


class MultiLock(Door, HoldingAll):
    """Several distributed locks, taken and given back as one: all of them or none. Made by `Client.lock_all`.

    One round takes all locks if they are free. Otherwise a caller waits for one lock at a time, in the order of the
    names' bytes, and meanwhile holds only locks whose names come before it. So callers that take all their locks by
    `Client.lock_all` never wait for each other in a circle (Havender, 1968). Nothing protects from a lock that is taken
    inside, alone, against this order.

    A wait may end up to two node timeouts after its timeout: the locks that it has must be given back.

    Each lock is an ordinary hold of its owner: a `Lock` of the same name nests in it. If one hold is lost, the whole
    counts as lost: `owned` is False, `ensure` raises, and ``on_lost`` is called, once.
    """

    __slots__ = ()

    _client: MultiLockClient
    _acquiring = staticmethod(acquire_all)
    _releasing = staticmethod(release_all)

    def ensure(self, seconds: float = 0.0) -> Mapping[str, int]:
        """Check, usually without I/O, that all holds are valid for `seconds` more, as `Lock.ensure` does.

        Args:
            seconds: the time that must be left at least, 0 to infinity; default 0.0.

        Returns:
            The fencing token of each hold, by the lock's name.

        Raises:
            LockLostError: a hold was lost, or has less left than `seconds`; in the second case the holds go on.
            NotOwnedError: the caller lacks one of the locks.
            TypeError, ConfigurationError: `seconds` is no number of seconds from 0.
        """
        check_seconds("seconds", seconds, 0.0, math.inf, "0 or more")
        tokens: Mapping[str, int] = self._client._session.run(self._ensuring(self._held(), seconds))
        return tokens

    def extend(self, ttl: float | None = None) -> float:
        """Renew all holds now, on a quorum, in one round.

        Args:
            ttl: as for `Lock.extend`.

        Returns:
            `remaining()` after the renewal.

        Raises:
            NotOwnedError: the caller lacks one of the locks.
            LockLostError: a hold was lost.
            QuorumError: too few masters confirmed it for one of the locks; the holds are still valid.
            TypeError, ConfigurationError: a ttl that can't be; with several masters, one above ``restart_guard``.
        """
        self._check_ttl(ttl)
        self._client._session.run(self._extending(self._held(), ttl))
        return self.remaining()

    def locked(self) -> bool:
        """Ask the masters whether one of the locks is held. Return True unless a quorum says that all are free.

        Raises:
            QuorumError: too few masters answered.
        """
        return any(info.held for info in self.info().values())

    def info(self) -> Mapping[str, LockInfo]:
        """Return the holder and the waiters of each lock, by its name, as `Client.info` does.

        Raises:
            QuorumError: too few masters answered.
        """
        session, members = self._client._session, self._spec.members
        answers = session.run(together([inspect_flows.look(member, session.clock) for member in members]))
        return {name: self._client._agree(name, one) for name, one in zip(self.names, answers, strict=True)}

    def force_release(self) -> bool:
        """End any hold of each lock, as `Lock.force_release` does.

        Returns:
            True if one of the locks was held.

        Raises:
            QuorumError: too few masters answered; holds of some locks may have ended.
        """
        ended = [self._client.force_release(name) for name in self.names]
        return any(ended)

    @property
    def _release_save(self) -> Never:
        """Refuse a `threading.Condition`, which looks for this when it is made.

        Without this, the condition would be made, and say in each wait that the caller does not have the lock.
        """
        raise TypeError(
            f"a Condition takes one lock, and {self.name!r} are several: make it of a lock of Client.lock, and take "
            "the others inside"
        )

    def __reduce__(self) -> Never:
        raise TypeError("a MultiLock can't be pickled: make one of a client in each process")
