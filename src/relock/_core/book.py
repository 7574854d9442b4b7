"""Book of the holds that the callers of one client have."""

from collections.abc import Sequence

from relock._core.hold import Hold
from relock._errors import LockLostError, NotOwnedError
from relock._keys import LOCK, SEMAPHORE
from relock._owner import Owner, OwnerKey, PermitKey, ReadKey, caller_name, owner_key

HoldKey = tuple[str, OwnerKey]

TOLD_MAX = 1000  # lost holds that are kept, for `Lock.lost`, after their owners have left every level


class Book(dict[HoldKey, Hold]):
    """Holds by lock name and caller. The book is a dict, whose single operations are atomic: it needs no lock.

    Attributes:
        had_readers: a caller of this client has asked for a lock as a reader.
    """

    had_readers: bool = False

    def of_name(self, name: str, kind: str = LOCK) -> list[Hold]:
        """Return the valid holds of this `kind` under this `name`, of all callers."""
        return [
            hold
            for (held, _), hold in self.copy().items()
            if held == name and hold.loss is None and hold.keys.kind == kind
        ]

    def note_forced(self, name: str, since: float, owner: bytes | None = None) -> list[Hold]:
        """Note that what was held of `name` at `since` was ended by force: of a lock, or one hold. Return these holds.

        Args:
            name: the name of the lock, or of the semaphore.
            since: the time before the first request to the masters, or that of the message.
            owner: the name of the hold; None for all holds of a lock.
        """
        forced = []
        for (held, _), hold in self.copy().items():
            is_meant = hold.keys.kind != SEMAPHORE if owner is None else hold.owner == owner
            if held == name and is_meant and hold.granted_at <= since:
                hold.is_forced = True
                forced.append(hold)
        return forced

    def all(self) -> list[Hold]:
        """Return every hold, also lost ones; drop lost ones whose owners ended, and the oldest beyond `TOLD_MAX`."""
        told = []
        for key, hold in self.copy().items():
            if hold.loss is not None and hold.liveness is not None and hold.liveness() is None:
                self.pop(key, None)  # no owner is left that could ask
            elif hold.loss is not None and hold.count == 0:
                told.append((key, hold))
        for key, hold in told[:-TOLD_MAX]:
            if self.get(key) is hold:  # else the owner has a new hold by now
                self.pop(key, None)
        return list(self.copy().values())

    def has(self, hold: Hold) -> bool:
        """Return whether `hold` is still held: neither released nor lost."""
        return hold.loss is None and self.get((hold.keys.name, hold.key)) is hold

    def has_either(self, key: HoldKey) -> bool:
        """Return whether the owner of `key` has the lock as a writer or as a reader, or levels of a lost hold."""
        name, owner = key[0], owner_key(key[1])
        holds = self.get((name, owner)), self.get((name, ReadKey(owner)))
        return any(hold is not None and hold.count > 0 for hold in holds)

    def not_owned(self, name: str, who: Owner | Hold) -> NotOwnedError:
        """Return the error for a caller that holds nothing.

        The error names the caller of this client that has the lock, if any: often one thread or task enters a block and
        another one leaves it.
        """
        if isinstance(who.key, PermitKey):
            return NotOwnedError(f"this permit of {name!r} was released already, or in another process", lock=name)
        caller = caller_name(who.key, who.liveness)
        if isinstance(who.key, ReadKey):
            return NotOwnedError(f"{caller} does not hold {name!r} as a reader", lock=name)
        holder = next((caller_name(hold.key, hold.liveness) for hold in self.of_name(name)), None)
        if holder is None:
            text = f"{caller} does not hold {name!r}: a caller must acquire a lock before it can use or release it"
        else:
            advice = "where one thread or task enters and another one leaves, give the lock an owner="
            text = f"{name!r} is held by {holder}, and {caller} does not hold it: {advice}"
        return NotOwnedError(text, lock=name)

    def forget(self, name: str, owners: Sequence[bytes]) -> None:
        """Drop the holds of the lock `name` that were granted to `owners`."""
        for key, hold in self.copy().items():
            if key[0] == name and hold.owner in owners:
                self.pop(key, None)


def stand_in(hold: Hold) -> OwnerKey:
    """Return the key of the hold that stands in for `hold`, which was lost."""
    return "stand-in", hold.key


def lost_error(hold: Hold) -> LockLostError:
    """Return the error for a hold that was lost."""
    loss = hold.loss
    if loss is None:
        raise AssertionError("only a lost hold has a loss")
    return LockLostError(
        f"the {hold.keys.noun} of {loss.lock!r} with token {loss.token} was lost: {loss.reason}; stop what it "
        "protected",
        lock=loss.lock,
        token=loss.token,
        reason=loss.reason,
    )
