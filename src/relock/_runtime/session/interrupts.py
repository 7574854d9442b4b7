"""What is done where an exception has struck a call between any two of its instructions.

The call has noted in its `CallRecord` what it may leave, before the first byte was sent. Here that is ended in the
background, or given back to the caller's hold.
"""

from relock._core.book import stand_in
from relock._core.call_record import CallRecord
from relock._core.hold import Hold
from relock._owner import Who
from relock._runtime.session.keeper import Keeper


class Interrupted:
    """Undoes what calls of one session have left."""

    def __init__(self, session: Keeper) -> None:
        self._session = session

    def abandon(self, record: CallRecord) -> None:
        """An interrupt has left a call that made `record`: what it may have left is ended in the background.

        It comes after an error of the call's own, too, and then finds nothing to do. Other threads of its ``owner=``
        are let in only then: what they do with the hold must stay.
        """
        if record.over is not None:
            record.spec = record.hold = None
            self._record_giving_back(record, *record.over)
            if record.hold is not None:
                record.over = None  # what must be given back is noted; counted again, it would be a level more
        self._take_back(record)
        record.over = None, 0
        if record.spec is not None or record.hold is not None:
            self.leave_gate(record)
        self._session.gates.leave(record)  # it may not even have come in

    def abandon_again(self, record: CallRecord) -> None:
        """Each door calls it where another exception leaves it, perhaps `abandon`; the gate is left whatever happens.

        What has been done is not done once more.
        """
        try:
            self.abandon(record)
        finally:
            self._session.gates.leave(record)

    def fail(self, record: CallRecord) -> None:
        """A call ends with an error of its own, and leaves nothing: other threads of its ``owner=`` may come in."""
        record.over = None, 0
        self.leave_gate(record)

    def _take_back(self, record: CallRecord) -> None:
        session = self._session
        hold, spec = record.hold, record.spec
        if spec is not None:
            owners = record.owners[:1] + record.owners[1:][-2:]  # of those between, nothing is left
            session.hub.forget(owners[0])
            session.holds.forget(spec.keys.name, owners)
            for owner in owners:
                session.undo(spec.keys, owner, 0, spec.ttl, session.clock() + spec.node_timeout)
        elif hold is not None:
            hold.count = hold.wanted = record.count
            if record.count:
                hold.settling = False  # the interrupt may have kept the janitor from hearing of it; twice does no harm
                session.settle(hold)
            elif hold.loss is None:
                session.holds.pop((hold.keys.name, hold.key), None)
                session.undo(hold.keys, hold.owner, hold.token, hold.ttl, max(hold.late_until, session.clock()))
            else:
                self.end_stand_in(hold)

    def _record_giving_back(self, record: CallRecord, hold: Hold | None, levels: int) -> None:
        """`record` must give back `levels` of `hold` (0: all), as they are by now: its owner's other threads are kept
        out meanwhile, for they may have changed them.
        """
        session = self._session
        if hold is None:
            return
        key = hold.keys.name, hold.key
        if hold.thread is None:
            session.gates.leave(record)  # the interrupt may have struck when it was in
            session.gates.enter(record, key, session.clock() + session.node_timeout)
        if session.holds.get(key) is hold and hold.count > 0:
            record.count = max(0, hold.count - levels) if levels else 0
            record.hold = hold  # last: with the hold, the count is noted

    def give_up(self, record: CallRecord, name: str, who: Who, levels: int) -> None:
        """An interrupt has left a release: the background gives back what the release should have given back.

        A caller that leaves a ``with`` block by an interrupt in its last step no longer holds the lock.
        """
        if record.hold is None and record.over is None:
            record.over = self._session.holds.get((name, who.key)), levels
        self.abandon(record)

    def give_up_again(self, record: CallRecord, name: str, who: Who, levels: int) -> None:
        """As `abandon_again`, after `give_up`."""
        try:
            self.give_up(record, name, who, levels)
        finally:
            self._session.gates.leave(record)

    def leave_gate(self, record: CallRecord) -> None:
        """Lets the next thread of an ``owner=`` in, if this one is in. The gate goes with the owner's hold.

        Not before: the last release of a hold may yet put it back into the book, as one that was lost.
        """
        session = self._session
        if record.gate is None:
            return
        if record.gate_key is not None:
            hold = session.holds.get(record.gate_key)
            if hold is None or hold.count == 0:
                session.gates.remove(record.gate_key)
        session.gates.leave(record)

    def end_stand_in(self, hold: Hold) -> None:
        """The levels of a lost hold are left: what a wait has taken in its place ends, in the background."""
        session = self._session
        other = session.holds.pop((hold.keys.name, stand_in(hold)), None)
        if other is not None and other.loss is None:
            session.undo(other.keys, other.owner, other.token, other.ttl, max(other.late_until, session.clock()))
