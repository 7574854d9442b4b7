"""Fan-out of a round: the calls of one `Ask` on their way to all masters at once.

The calls are written to every master before any reply is read, and the reply that is there first is read first. A round
is over when its outcome is certain, or its time. A connection that still owes its reply goes back to the pool and takes
the next request behind the one before. So on one connection a release never overtakes its acquire, and the late reply
finds its own round. No thread is switched and no connection opened on the way, while a quorum is connected.

Calls share at most ``max_connections`` connections to a master. A call that finds none free waits in a line, within the
time of its round, and holds no other connection meanwhile. A release is a call like any other. It waits only for the
calls before it, and these wait for nothing but a master. If its time runs out, the hold has ended here all the same,
and the janitor tells the masters, on a connection of its own. If releases were let past the line, those of a thousand
threads would open a thousand connections.
"""

from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from relock._core.effects import Answer, Ask, Failure
from relock._core.quorum import quorum_of
from relock._errors import ConfigurationError
from relock._runtime.masters.bundle import Bundle
from relock._runtime.masters.connections import PATIENT_PART, Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.lines import LOOK_SECONDS, Line, Place
from relock._runtime.masters.master import Master
from relock._runtime.masters.round import Round
from relock._runtime.platform import Platform

CROWDED_SECONDS = 0.1  # a call that could ask a quorum waits this long for the others
GRACE_SECONDS = 0.01  # what a first connection may take longer than a quorum of the others, beside as long again


class FanOut:
    """Fan-out of requests to all masters at once."""

    def __init__(self, masters: tuple[Master, ...], platform: Platform) -> None:
        self._masters = masters
        self._platform = platform
        self._clock = platform.clock
        self._quorum = quorum_of(len(masters))
        self._spared = len(masters) - self._quorum
        self._bundles: deque[Bundle] = deque()  # those that no call has just now; the last one is used next
        self._no_replies_yet: list[Answer] = [master.no_reply_yet for master in masters]
        self._line = masters[0].pool.line
        for master in masters:
            master.pool.line = self._line  # a call that needs several of them at once stands in one line

    def ask(self, ask: Ask, *, strict: bool, is_call: bool = True) -> list[Answer]:
        """Ask the masters, and return the answers when the outcome is certain; later ones are written into that list.

        A server that turns out to be no master (a replica, say) raises a `ConfigurationError` if `strict`. For a
        request that gives back or cleans up, or if the server was a master before, it is one more master that does not
        answer. Renewals, undos and heartbeats are no calls (`is_call`): they have connections of their own, and never
        wait for one.
        """
        now = self._clock()
        count = len(ask.calls)
        answers = self._no_replies_yet.copy()
        if count > 1:
            answers[:] = [(*no_reply_yet,) * count for no_reply_yet in answers]
        round_ = Round(ask.calls, ask.until, now, answers)
        masters = self._masters if ask.only is None else self._only(ask.only, answers)
        connections: list[Connection] = []
        try:
            if not self._line.waiting or not is_call:
                for master in masters:
                    connection = master.pool.check_out(now) if is_call else master.pool.check_out_own(now)
                    if connection is not None:
                        connections.append(connection)
            if len(connections) < len(masters):
                self._get(masters, round_, connections, strict=strict, is_call=is_call)
            round_.missing = len(connections)
            for connection in connections.copy():
                try:
                    connection.request(round_)
                except NETWORK_ERRORS as error:
                    connections.remove(connection)
                    connection.pool.drop(connection, round_, error)
            if len(connections) == 1:
                self._read_one(round_, connections)
            elif connections:
                self._read_whoever_is_ready(round_, connections, ask)
            if connections:
                self._give_back(round_, connections)
        except BaseException:  # an interrupt: what they owe dies with them, also where somebody keeps this exception
            for connection in connections:
                connection.close()
            self._bundles.clear()  # these must not keep one open that was just let go of, and is nobody's any more
            raise
        return answers

    # Opening --------------------------------------------------------------------------------------------------------

    def _only(self, numbers: frozenset[int], answers: list[Answer]) -> Sequence[Master]:
        """Return the masters with these numbers; the others' answers say that they were not asked."""
        for index, master in enumerate(self._masters):
            if index not in numbers:
                answers[index] = (Failure(master.address, "it was not asked", sent=False),) * len(answers[index])
        return [master for master in self._masters if master.index in numbers]

    def _get(
        self, masters: Sequence[Master], round_: Round, connections: list[Connection], *, strict: bool, is_call: bool
    ) -> None:
        """Get the connections to `masters` that `connections` lacks, or do without: the answers say why."""
        is_over = False
        while not is_over:
            if (
                is_call
                and self._is_to_wait(masters, connections)
                and not self._wait_in_line(masters, round_, connections)
            ):
                for master in masters:
                    round_.fail(master, master.out_of_time())
                break
            is_over = self._do_without(masters, round_, connections, strict=strict, is_call=is_call)
        for connection in connections:
            round_.awaits(connection.facts)
        time = round_.until - round_.sent_at
        round_.sent_at = self._clock()  # opening the others took time, for which nobody here was silent
        if round_.until - round_.sent_at < PATIENT_PART * time:
            for connection in connections:
                facts = connection.facts
                round_.fail(facts, facts.asked_late if round_.sent_at >= round_.until else facts.asked_shortly)

    def _is_to_wait(self, masters: Sequence[Master], connections: Sequence[Connection]) -> bool:
        """Return whether a call must wait: others came first, or have what is needed, and will give it back."""
        return bool(masters[0].pool.line.waiting) or bool(_without_room(masters, connections))

    def _wait_in_line(self, masters: Sequence[Master], round_: Round, connections: list[Connection]) -> bool:
        """Wait for connections, or for room to open them, behind the calls before this one, and hold none meanwhile.

        Return whether the call was served: to all of `masters`, or later to a quorum of them, there is a connection, or
        room for one. Else it has none. A master that hangs keeps the connections on which it was asked; if a quorum of
        the others has free ones, that delays a call by `CROWDED_SECONDS` at most.
        """
        self._give_back(round_, connections)
        line = masters[0].pool.line
        place = line.place(round_.until)
        content_at = min(self._clock() + CROWDED_SECONDS, round_.until)
        try:
            line.join(place)
            while not self._takes_turn(line, place, masters, connections, content_at):
                if connections:
                    self._give_back(round_, connections)
                    place.calm()  # what it gives back itself is no reason to look again at once
                now = self._clock()
                if now >= round_.until:
                    return False
                place.sleep(round_.until - now)
            return True
        finally:
            line.leave(place)

    def _takes_turn(
        self, line: Line, place: Place, masters: Sequence[Master], connections: list[Connection], content_at: float
    ) -> bool:
        """Take connections if the call is first, or has waited until a quorum will do; return whether they suffice."""
        now = self._clock()
        is_content = now >= content_at and len(masters) > 1
        if not is_content and not line.is_first(place, now):
            return False
        full = sum(master.pool.is_full for master in masters)
        if full and (not is_content or len(masters) - full < self._quorum):
            return False
        for master in masters:
            connection = master.pool.check_out(now)
            if connection is not None:
                connections.append(connection)
        lacking = len(_without_room(masters, connections))
        return not lacking or (is_content and len(masters) - lacking >= self._quorum)

    def _do_without(
        self, masters: Sequence[Master], round_: Round, connections: list[Connection], *, strict: bool, is_call: bool
    ) -> bool:
        """Do without the absent ones of `masters` where the others are enough, else open connections to these first.

        A quorum is enough; where only some masters must be asked, those that are connected are. Return False where a
        call has to wait until there is room for another connection.
        """
        unconnected = _unconnected(masters, connections)
        if not unconnected:
            return True
        if len(connections) >= self._quorum or len(masters) < len(self._masters):
            self._go_on_without(unconnected, round_, connections, strict=strict, is_call=is_call)
            return True
        if len(self._masters) == 1:
            return self._open_here(unconnected[0], round_, connections, strict=strict, is_call=is_call)
        return self._open_side_by_side(masters, unconnected, round_, connections, strict=strict, is_call=is_call)

    def _go_on_without(
        self, unconnected: list[Master], round_: Round, connections: list[Connection], *, strict: bool, is_call: bool
    ) -> None:
        for master in unconnected:
            if strict and master.facts.config_error is not None:
                self._give_back(round_, connections)
                raise master.facts.config_error
            if master.pool.has_room:
                master.open_later(None, is_call=is_call)
            round_.fail(master, master.unconnected())

    def _open_here(
        self, master: Master, round_: Round, connections: list[Connection], *, strict: bool, is_call: bool
    ) -> bool:
        """Open a connection; return False where there is no room for one."""
        try:
            connection = master.pool.open_for_call() if is_call else master.pool.open()
            if connection is None:
                return False
            connections.append(connection)
        except NETWORK_ERRORS as error:
            round_.fail(master, master.failed(error, sent=False))
        except ConfigurationError as error:
            if strict and not master.facts.was_sound:
                raise
            round_.fail(master, master.turned_out(error))
        return True

    def _open_side_by_side(
        self,
        masters: Sequence[Master],
        unconnected: list[Master],
        round_: Round,
        connections: list[Connection],
        *,
        strict: bool,
        is_call: bool,
    ) -> bool:
        """Open connections to the absent masters, all at once; when a quorum is there, the others have as long again.

        Return False where other calls have what was opened meanwhile, and there is no room for more.
        """
        reports: SimpleQueue[tuple[Master, Failure | ConfigurationError | None]] = self._platform.queue()
        waiting = dict.fromkeys(unconnected)  # in their order
        for master in unconnected:
            if master.pool.has_room or not is_call:
                master.open_later(reports, is_call=is_call)
        began, until = self._clock(), round_.until
        while waiting and self._clock() < until:
            try:
                master, trouble = reports.get(timeout=min(LOOK_SECONDS, max(0.0, until - self._clock())))
            except Empty:
                pass
            else:
                if trouble is not None and master in waiting:
                    waiting.pop(master)
                    round_.fail(master, self._judge(master, trouble, round_, connections, strict=strict))
            self._pick_up(waiting, connections, is_call=is_call)
            if is_call and waiting and _without_room(masters, connections):
                return False
            now = self._clock()
            if len(connections) >= self._quorum:
                until = min(until, now + (now - began) + GRACE_SECONDS)
        for master in waiting:
            round_.fail(master, master.unconnected())
        return True

    def _judge(
        self,
        master: Master,
        trouble: Failure | ConfigurationError,
        round_: Round,
        connections: list[Connection],
        *,
        strict: bool,
    ) -> Failure:
        """Return a reconnector's report as a `Failure`, unless the caller has to know of a mistake: then raise that."""
        if isinstance(trouble, Failure):
            return trouble
        if strict:
            self._give_back(round_, connections)
            raise trouble
        return master.misconfigured(trouble)

    def _pick_up(self, waiting: dict[Master, None], connections: list[Connection], *, is_call: bool) -> None:
        """Take connections to the masters that are waited for: opened for us, or given back by others meanwhile."""
        now = self._clock()
        for master in list(waiting):
            connection = master.pool.check_out(now) if is_call else master.pool.check_out_own(now)
            if connection is not None:
                waiting.pop(master)
                connections.append(connection)

    # Sending and reading --------------------------------------------------------------------------------------------

    def _read_one(self, round_: Round, connections: list[Connection]) -> None:
        connection = connections[0]
        try:
            connection.read(round_)
        except NETWORK_ERRORS as error:
            connections.remove(connection)
            connection.pool.drop(connection, round_, error)

    def _read_whoever_is_ready(self, round_: Round, connections: list[Connection], ask: Ask) -> None:
        try:
            bundle = self._bundles.pop()
        except IndexError:
            bundle = Bundle(self._platform)
        bundle.take(connections)
        poll, by_fileno, is_certain = bundle.poll, bundle.by_fileno, ask.is_certain
        while round_.missing:
            if round_.missing <= self._spared and is_certain is not None and is_certain(round_.answers):
                break
            ready = poll(max(0.0, round_.until - self._clock()) * 1000)
            if not ready:
                break
            for fileno, _ in ready:
                connection = by_fileno[fileno]
                try:
                    connection.receive()
                except NETWORK_ERRORS as error:
                    bundle.drop(fileno)
                    connections.remove(connection)
                    connection.pool.drop(connection, round_, error)
        self._bundles.append(bundle)

    def _give_back(self, round_: Round, connections: list[Connection]) -> None:
        """Put the connections back into their pools, but for those whose masters have been silent for too long."""
        now = self._clock()
        while connections:
            connection = connections.pop()  # Let go, then share: in its pool it may be another caller's at once
            connection.pool.put_back(connection, round_, now)


def _unconnected(masters: Sequence[Master], connections: Sequence[Connection]) -> list[Master]:
    present = {connection.facts for connection in connections}
    return [master for master in masters if master.facts not in present]


def _without_room(masters: Sequence[Master], connections: Sequence[Connection]) -> list[Master]:
    """Return the masters to which a connection is needed, where none is there and none may be opened.

    Of several masters, one whose connections are all idle and owe too many replies is none of these: it is left to be
    slow.
    """
    unconnected = _unconnected(masters, connections)
    if len(masters) == 1:
        return [master for master in unconnected if not master.pool.has_room]
    return [master for master in unconnected if master.pool.is_crowded]
