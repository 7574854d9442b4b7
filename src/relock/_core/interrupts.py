"""Undoing a call that an exception has cut off between any two of its instructions.

Before the call sent its first byte, it noted in its `CallRecord` what it may leave. The functions here end that hold
or place in the background, or restore the count of the caller's hold.
"""

import sys
from collections.abc import Callable

from relock._core.book import stand_in
from relock._core.call_record import CallRecord
from relock._core.hold import FOREVER, Hold
from relock._core.host import Host
from relock._core.lock_spec import LockSpec, MultiSpec
from relock._core.quorum import NEVER
from relock._core.tasks import GoOn
from relock._events import NotGranted, Released
from relock._owner import Owner


class _DeferredRelease:
    """Wait at the gate for a call that has ended, then release its levels.

    A caller that leaves the gate wakes this wait like any other. The janitor's thread then looks and releases, so that
    no caller is delayed.
    """

    def __init__(
        self, host: Host, hold: Hold, do: Callable[[CallRecord], object], open_ones: set["_DeferredRelease"]
    ) -> None:
        self._hand = host.janitor.hand
        self._record = CallRecord()
        self._waiting = host.gates.wait(self._record, (hold.keys.name, hold.key), FOREVER, self._record, self)
        self._do = do
        self._is_done = False
        self._open_ones = open_ones

    def empty(self) -> bool:
        """Return True, as `TokenQueue` asks: a deferred release is always ready to look."""
        return True

    def put(self, _token: None = None, /) -> None:
        """Have the janitor look whether the release has its turn; a second look does no harm."""
        self._hand(GoOn(self._look))

    def _look(self) -> None:
        for _ in self._waiting:
            return
        if not self._is_done:
            self._is_done = True
            self._do(self._record)
        self._open_ones.discard(self)  # a clean-up that came later may have added this release a second time


class Interrupted:
    """Undo of the interrupted calls of one client.

    Args:
        may_wait: True if a caller that cleans up may wait at a gate: a thread may, a task may not.
    """

    def __init__(self, host: Host, *, may_wait: bool) -> None:
        self._host = host
        self._may_wait = may_wait
        self._deferred_releases: set[_DeferredRelease] = set()

    def undo_acquire(self, record: CallRecord, error: BaseException | None = None) -> None:
        """End in the background what the interrupted call of `record` may have left; report its hold as released.

        An acquire without a hold is reported as not granted, with the `error` that ended the call; by default, that is
        the one which is being handled. If there is none, the call will begin anew, or its event loop is closed, and
        nothing is reported.

        A call that ended with an error of its own has left nothing, so then there is nothing to do. The gate is left
        last: the undo restores the old count, and so would overwrite the levels that another call took meanwhile.
        """
        for part in reversed(record.members):
            self.undo_acquire(part)
        if record.due is not None and record.hold is None and record.completed is None:
            record.completed = record.due
        if record.completed is not None:
            record.spec = record.hold = None
            self._give_back(record, *record.completed)
            if record.hold is not None:
                record.completed = None  # already noted: noting it twice would release one level too many
        self._take_back(record, error or sys.exception())
        record.completed = None, 0
        self._host.gates.leave(record)  # also if the call was still in line
        self._host.waits.pop(record, None)
        self._host.several.pop(record, None)  # last: `close` waits until nothing is left to undo

    def undo_acquire_again(self, record: CallRecord) -> None:
        """Finish an `undo_acquire` that another exception may have cut off, and leave the gate in any case.

        Each door calls this when an exception leaves the door. Nothing is undone twice.
        """
        try:
            self.undo_acquire(record)
        finally:
            self._leave_gates(record)

    def _leave_gates(self, record: CallRecord) -> None:
        for part in record.members:
            self._host.gates.leave(part)
        self._host.gates.leave(record)

    def fail(self, record: CallRecord) -> None:
        """Leave the gate after an error of the call's own, which needs no undo."""
        for part in record.members:
            self.fail(part)
        record.completed = None, 0
        self._host.gates.leave(record)

    def _take_back(self, record: CallRecord, error: BaseException | None = None) -> None:
        host = self._host
        hold, spec = record.hold, record.spec
        if spec is not None:
            owners = record.owners[:1] + record.owners[1:][-2:]  # the flow has given back the names between these
            host.holds.forget(spec.keys.name, owners)
            for owner in owners:
                host.undo(spec.keys, owner, 0, spec.ttl, host.clock() + spec.node_timeout)
            host.hubs.forget(owners[0])  # Undo, then forget: `close` waits for the waiter, and then for the undos
            if error is not None and host.logs_events():
                keys, name, now = spec.keys, owners[0].decode(), host.clock()
                waited = now - host.waits[record][1] if record in host.waits else 0.0
                why = type(error).__name__
                host.emit(NotGranted(keys.name, waited, kind=keys.kind, owner=name, error=why))
        elif hold is not None:
            was_held, hold.count, hold.wanted = hold.count > 0, record.count, record.count
            if record.count:
                hold.settling = False  # `settle` may have been cut off before it told the janitor; twice does no harm
                host.settle(hold)
            elif hold.loss is None:
                host.holds.pop((hold.keys.name, hold.key), None)
                host.end_hold(hold)
                if was_held and host.logs_events():
                    host.emit(Released(held_for=host.clock() - hold.granted_at, **hold.told))
            else:
                self.leave_lost(hold)

    def _give_back(self, record: CallRecord, hold: Hold | None, levels: int) -> None:
        """Note in `record` that `levels` of `hold` (0: all) must be given back; if the gate is taken, do that later.

        This call must be alone at the gate, because other calls of the owner change the levels.
        """
        if hold is None:
            return
        if record.deferred_release is not None or (hold.takes_turns and not self._come_in(record, hold)):
            self._give_back_later(record, hold, levels)
        else:
            self._note(record, hold, levels)

    def _come_in(self, record: CallRecord, hold: Hold) -> bool:
        """Enter the gate, to keep out the owner's other calls; return False if the caller can't wait (any longer)."""
        host, key = self._host, (hold.keys.name, hold.key)
        host.gates.leave(record)  # the interrupt may have struck inside the gate
        if self._may_wait and host.platform.loop() is None:
            return host.gates.enter(record, key, host.clock() + host.node_timeout)
        return host.gates.try_enter(record, key, record)

    def _note(self, record: CallRecord, hold: Hold, levels: int) -> None:
        if self._host.holds.get((hold.keys.name, hold.key)) is hold and hold.count > 0:
            record.count = max(0, hold.count - levels) if levels else 0
            record.hold = hold  # last: `_take_back` trusts the count of a record that names a hold

    def _give_back_later(self, record: CallRecord, hold: Hold, levels: int) -> None:
        def do(own: CallRecord) -> None:
            self._note(own, hold, levels)
            self._take_back(own)
            self._host.gates.leave(own)

        if record.deferred_release is None:  # else an earlier clean-up, itself interrupted, has made the release
            record.deferred_release = _DeferredRelease(self._host, hold, do, self._deferred_releases)
        deferred = record.deferred_release
        self._deferred_releases.add(deferred)  # the gate refers to it only weakly
        deferred.put()

    def undo_release(self, record: CallRecord, spec: LockSpec | MultiSpec, who: Owner, levels: int) -> None:
        """Have the background do what an interrupted release did not do.

        Even if an interrupt strikes in the last step of a ``with`` block, the caller no longer holds the lock.
        """
        record.owe(spec, self._host.holds, who, levels)
        self.undo_acquire(record)

    def undo_release_again(self, record: CallRecord, spec: LockSpec | MultiSpec, who: Owner, levels: int) -> None:
        """Finish an `undo_release` that another exception may have cut off, and leave the gate in any case."""
        try:
            self.undo_release(record, spec, who, levels)
        finally:
            self._leave_gates(record)

    def leave_lost(self, hold: Hold) -> None:
        """End in the background what the lost `hold`, whose last level is left, has kept from other owners.

        That is what some masters still have of the hold, or the hold that stood in for it.
        """
        host = self._host
        if hold.told_until > NEVER:
            host.end_hold(hold)
        other = host.holds.pop((hold.keys.name, stand_in(hold)), None)
        if other is not None and other.loss is None:
            host.end_hold(other)
