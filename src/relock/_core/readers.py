"""Calls of readers, and a writer's downgrade to a reader; `relock._core.own` says how the two holds go together."""

from relock._core.call_record import CallFlow, CallRecord
from relock._core.calls import Calls
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Outcome
from relock._errors import LockLostError, RelockError
from relock._owner import Owner, as_reader


def acquire_read(
    calls: Calls, record: CallRecord, spec: LockSpec, who: Owner, until: float, *, count: int = 1
) -> CallFlow[Outcome | None]:
    """Take `count` more levels for the caller as a reader, as `Calls.acquire` does."""
    return calls.acquire(record, spec, as_reader(who), until, count=count)


def release_read(calls: Calls, record: CallRecord, spec: LockSpec, who: Owner) -> CallFlow[None]:
    """Leave one level of the caller's hold as a reader, as `Calls.release` does."""
    return calls.release(record, spec, as_reader(who))


def downgrade(
    calls: Calls, record: CallRecord, spec: LockSpec, reading: LockSpec, who: Owner
) -> CallFlow[Outcome | None]:
    """End the caller's hold as a writer, with one level as a reader for each of its levels.

    Return None if that is done; else the outcome of the attempt as a reader, and the caller's hold goes on.

    Raises:
        NotOwnedError: the caller does not have the lock as a writer.
        LockLostError: that hold was lost; the caller must still leave it.
    """
    host = calls._host
    hold = host.holds.get((spec.keys.name, who.key))
    if hold is None or hold.count == 0:
        raise host.holds.not_owned(spec.keys.name, who)
    host.check_valid(hold)
    reader, writer, levels = record.part(), record.part(), hold.count
    record.members = [reader]  # Note, then send: until the reader has its levels, an interrupt gives them back
    outcome = yield from acquire_read(calls, reader, reading, who, hold.deadline, count=levels)
    if outcome is not None:
        host.check_valid(hold)
        return outcome
    writer.owe(spec, host.holds, who, 0)
    record.members = [writer]  # from here on, an interrupt ends the writer's hold, and the reader keeps its levels
    try:
        yield from calls.release(writer, spec, who, levels=0)
    except RelockError as error:
        calls._interrupted.fail(writer)
        back = record.part()
        back.owe(reading, host.holds, as_reader(who), levels)
        record.members = [back]
        yield from calls.release(back, reading, as_reader(who), levels=levels)
        calls._interrupted.fail(back)
        if isinstance(error, LockLostError):
            hold.count = levels  # the caller has one of the two holds after each failure, and leaves it itself
        raise
    return None
