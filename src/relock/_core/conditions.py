"""Wait of a `threading.Condition`: it releases every level of its caller's hold, and takes them again at its end."""

from attrs import evolve

from relock._core.book import stand_in
from relock._core.call_record import CallFlow, CallRecord
from relock._core.calls import Calls
from relock._core.flows.extend import extend
from relock._core.hold import FOREVER, Hold
from relock._core.host import Host
from relock._core.own import has_reader
from relock._core.quorum import Outcome
from relock._errors import ConfigurationError
from relock._events import LossCode
from relock._options import DEADLOCK_RAISES, DEADLOCK_REPORTED
from relock._owner import Owner


def check_no_reader(host: Host, hold: Hold) -> None:
    """Refuse a condition over `hold` while its owner has the lock as a reader as well.

    A wait would give up the writer's hold only. It could not take that again beside the reader's: see `UpgradeError`.

    Raises:
        ConfigurationError: it has.
    """
    if has_reader(host, hold):
        raise ConfigurationError(
            f"the caller has {hold.keys.name!r} as a reader as well, and a Condition's wait could not take the write "
            "lock again beside that: release the read lock first",
            lock=hold.keys.name,
        )


def take_again(calls: Calls, record: CallRecord, who: Owner, hold: Hold, count: int) -> CallFlow[Outcome | None]:
    """Take `count` levels for the owner of `hold`, which a condition's wait has released.

    Neither the wait's timeout nor `patience` ends this, nor does a deadlock: it goes on until a quorum answers and the
    lock is free. The new hold has the options of the outermost level of `hold`, and its callbacks, rest and ttl.

    If `hold` was lost, it goes back into the book with its levels, so that its owner learns of the loss. Until the
    owner has left these levels, another hold stands in for it: the code after the wait runs with the lock.
    """
    host = calls._host
    spec, options = evolve(hold.spec, patience=FOREVER), hold.spec.options
    if options.deadlock == DEADLOCK_RAISES:
        spec = evolve(spec, options=evolve(options, deadlock=DEADLOCK_REPORTED))
    if hold.loss is None:
        outcome = yield from calls.acquire(record, spec, who, FOREVER, count=count)
        if outcome is None:
            yield from _restore(host, host.holds[spec.keys.name, who.key], hold)
        return outcome
    outcome = yield from calls.acquire(record, spec, who._replace(key=stand_in(hold)), FOREVER)
    if outcome is None:
        _book(host, hold, count)
    return outcome


def _restore(host: Host, hold: Hold, before: Hold) -> CallFlow[None]:
    """Give `hold` the callbacks, the rest and the longer ttl that nested levels, or `extend`, had added to `before`."""
    hold.callbacks[:] = before.callbacks
    hold.at_least = before.at_least
    if before.ttl > hold.ttl:
        hold.ask_for(before.ttl)
        yield from extend((hold,), host.clock, host.node_timeout)
        host.watchdog.watch(hold)


def lose_waited(host: Host, hold: Hold, count: int, error: BaseException) -> None:
    """Report as lost the `count` levels of `hold` that a wait gave up and did not take again."""
    hold.renew_at = FOREVER  # the masters no longer have the hold
    _book(host, hold, count)
    reason = f"a condition's wait gave it up, and did not take it again: {error!r}"
    host.lose(hold, LossCode.NOT_RETAKEN, reason)


def _book(host: Host, hold: Hold, count: int) -> None:
    """Put a hold that has ended back into the book, with `count` levels that its owner must leave."""
    hold.count = count
    host.holds[hold.keys.name, hold.key] = hold
