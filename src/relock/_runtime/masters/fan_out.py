"""Fan-out of a round: the calls of one `Ask` on their way to all masters at once.

The calls are written to every master before any reply is read, and replies are read in the order in which they come. A
round ends when its outcome is certain or its time is over. A connection that still owes its reply goes back to the pool
and takes the next request. So on one connection a release never overtakes its acquire, and a late reply finds its own
round. While a quorum is connected, a round needs no other thread and opens no connection.

Calls share at most ``max_connections`` connections to a master. A call that finds none free waits in a line, within the
time of its round, and holds no other connection meanwhile. A release waits like any other call: only for the calls
before it, which wait for nothing but a master. If the time of a release runs out, the hold has still ended in this
client, and the janitor tells the masters, on a connection of its own. If releases went past the line, those of a
thousand threads would open a thousand connections.
"""

from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue

from relock._core.asking import PATIENT_PART, Panel, Part, check_usable, grace_seconds
from relock._core.effects import Answer, Ask, Exchange, Failure
from relock._errors import ConfigurationError
from relock._runtime.masters.bundle import Bundle
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.master import Master
from relock._runtime.platform import Platform
from relock._runtime.wait_queue import Entry

LOOK_SECONDS = 0.02  # between two looks of a call that waits for a connection: one that breaks wakes no call
CROWDED_SECONDS = 0.1  # a call that could ask a quorum waits this long for the others


class Leg:
    """Round on its way to some masters, with the connections that it has checked out.

    Attributes:
        line: the line in which a call waits for connections to these masters.

    Args:
        part: the round, and the masters that are asked.
        strict: a server that turns out to be no master raises a `ConfigurationError`.
        is_call: the round waits in line for the connections of calls; else it may use extra ones.
    """

    def __init__(self, part: Part[Master], *, strict: bool, is_call: bool) -> None:
        self.masters, self.round = part
        self.line = self.masters[0].pool.line
        self.strict = strict
        self.is_call = is_call
        self.connections: list[Connection] = []

    @property
    def unconnected(self) -> list[Master]:
        """Masters to which the round has no connection."""
        present = {connection.facts for connection in self.connections}
        return [master for master in self.masters if master.facts not in present]

    @property
    def without_room(self) -> list[Master]:
        """Masters to which the round has no connection, and none may be opened.

        If there are several masters, one whose connections are all idle, but owe too many replies, is not included:
        the round goes on without that slow master.
        """
        unconnected = self.unconnected
        if len(self.masters) == 1:
            return [master for master in unconnected if not master.pool.has_room]
        return [master for master in unconnected if master.pool.is_crowded]

    def check_out(self, masters: Iterable[Master], now: float) -> None:
        """Check out an idle connection to each of these masters that has one."""
        for master in masters:
            connection = master.pool.check_out(now) if self.is_call else master.pool.check_out_own(now)
            if connection is not None:
                self.connections.append(connection)

    def send(self) -> None:
        """Send the round on the connections."""
        self.round.missing = len(self.connections)
        for connection in self.connections.copy():
            try:
                connection.request(self.round)
            except NETWORK_ERRORS as error:
                self.drop(connection, error)

    def drop(self, connection: Connection, error: BaseException) -> None:
        """Give up a connection that broke."""
        self.connections.remove(connection)
        connection.pool.drop(connection, self.round, error)

    def give_back(self, now: float) -> None:
        """Put the connections back into their pools; close those on which a master has been silent for too long."""
        while self.connections:
            connection = self.connections.pop()  # Let go, then share: once in the pool, another caller may use it
            connection.pool.put_back(connection, self.round, now)

    def do_without(self, masters: Iterable[Master]) -> None:
        """Go on without these masters, to which nothing was sent."""
        for master in masters:
            self.round.fail(master, master.unconnected())


class FanOut:
    """Fan-out of requests to all masters at once, or to the nodes of a Cluster."""

    def __init__(self, panel: Panel[Master], platform: Platform) -> None:
        self._panel = panel
        self._platform = platform
        self._clock = platform.clock
        self._bundles: deque[Bundle] = deque()  # the free ones; the last one is used next
        line = panel.masters[0].pool.line
        for master in panel.masters:
            master.pool.line = line  # a call that needs several of them at once stands in one line

    def ask(self, asked: Ask | Exchange, *, strict: bool, is_call: bool = True) -> list[Answer]:
        """Ask the masters, and return the answers when the outcome is certain; later ones are written into that list.

        If `strict`, a server that never was a master (a replica, say) raises a `ConfigurationError`. Otherwise, as
        for a request that cleans up, the server counts as a master that does not answer. Renewals, undos and heartbeats
        are no calls (`is_call`): they may use extra connections, and never wait for one.

        On a Cluster, a request may go to several nodes at once. No call has a connection to one node while it waits in
        line for another node: two calls might wait for each other.
        """
        way, now = self._panel.route(asked, strict=strict), self._clock()
        while parts := way.parts(now):
            now = self._send_and_read([Leg(part, strict=strict, is_call=is_call) for part in parts])
        return way.answers

    def _send_and_read(self, legs: Collection[Leg]) -> float:
        """Write to all masters, and only then read; return our time at the end."""
        try:
            try:
                self._write(legs)
            except ConfigurationError:
                self._give_back(legs)
                raise
            return self._finish(legs)
        except BaseException:  # an interrupt: close the connections, so that their replies reach no other request
            for connection in [connection for leg in legs for connection in leg.connections]:
                connection.close()
            self._bundles.clear()  # a bundle must not keep alive a connection that was just taken out of its leg
            raise

    def _finish(self, legs: Collection[Leg]) -> float:
        """Read the replies to what these have sent, and put the connections back."""
        for leg in legs:
            self._read(leg)
        return self._give_back(legs)

    def _write(self, legs: Collection[Leg]) -> None:
        """Write to all masters that are connected, and then connect to the others and write to them."""
        lacking = []
        for leg in legs:
            if not (leg.is_call and leg.line.waiting):
                leg.check_out(leg.masters, leg.round.sent_at)
            if len(leg.connections) == len(leg.masters):
                leg.send()
            else:
                lacking.append(leg)
        for i, leg in enumerate(lacking):
            if leg.is_call:
                self._finish([other for other in legs if other is not leg])
            if i and self._clock() >= leg.round.until:  # the legs before took all the time
                leg.do_without(leg.unconnected)
            else:
                self._get(leg)
            leg.send()

    def _give_back(self, legs: Iterable[Leg]) -> float:
        now = self._clock()
        for leg in legs:
            leg.give_back(now)
        return now

    # Opening --------------------------------------------------------------------------------------------------------

    def _get(self, leg: Leg) -> None:
        """Get the connections that `leg` lacks, or note in the answers why there are none."""
        round_, is_over = leg.round, False
        while not is_over:
            # Wait in line if other calls came first, or are using the connections that this one needs.
            if leg.is_call and (leg.line.waiting or leg.without_room) and not self._wait_in_line(leg):
                for master in leg.masters:
                    round_.fail(master, master.out_of_time())
                break
            is_over = self._get_quorum(leg)
        for connection in leg.connections:
            round_.awaits(connection.facts)
        time = round_.until - round_.sent_at
        round_.sent_at = self._clock()  # from now on a master may count as silent: connecting took the time before
        if round_.until - round_.sent_at < PATIENT_PART * time:
            for connection in leg.connections:
                facts = connection.facts
                round_.fail(facts, facts.asked_late if round_.sent_at >= round_.until else facts.asked_shortly)

    def _wait_in_line(self, leg: Leg) -> bool:
        """Wait for connections, or for room to open them, behind the calls before this one, and hold none meanwhile.

        Return True if there is a connection, or room for one, to each of the masters; after `CROWDED_SECONDS` a quorum
        of them is enough. Return False, with no connection, if the time is over. All connections to a master that hangs
        may be in use; if a quorum of the others has free ones, that delays a call by `CROWDED_SECONDS` at most.
        """
        leg.give_back(self._clock())
        line, until = leg.line, leg.round.until
        tokens: SimpleQueue[None] = self._platform.queue()
        entry = Entry(tokens, until=until)
        content_at = min(self._clock() + CROWDED_SECONDS, until)
        try:
            line.join(entry)
            while not self._takes_turn(leg, entry, content_at):
                if leg.connections:
                    leg.give_back(self._clock())
                    while not tokens.empty():  # giving back has put a token here: no reason to look again at once
                        tokens.get_nowait()
                now = self._clock()
                if now >= until:
                    return False
                with suppress(Empty):
                    tokens.get(timeout=min(until - now, LOOK_SECONDS))
            return True
        finally:
            line.leave(entry)

    def _takes_turn(self, leg: Leg, entry: Entry, content_at: float) -> bool:
        """Check out connections if the call is first in line, or content with a quorum; return if they are enough."""
        now, masters = self._clock(), leg.masters
        is_content = now >= content_at and len(masters) > 1
        if not is_content and leg.line.first(now) is not entry:
            return False
        full = sum(master.pool.is_full for master in masters)
        if full and (not is_content or len(masters) - full < self._panel.quorum):
            return False
        leg.check_out(masters, now)
        lacking = len(leg.without_room)
        return not lacking or (is_content and len(masters) - lacking >= self._panel.quorum)

    def _get_quorum(self, leg: Leg) -> bool:
        """Do without the unconnected masters if the others are enough; else first open connections to them.

        Return False if a call has to wait until there is room for another connection.
        """
        unconnected = leg.unconnected
        if not unconnected:
            return True
        if self._panel.is_enough(len(leg.connections), len(leg.masters)):
            if leg.strict:
                check_usable([master.facts.config_error for master in unconnected])
            for master in unconnected:
                if master.pool.has_room:
                    master.open_later(None, is_call=leg.is_call)
            leg.do_without(unconnected)
            return True
        if len(leg.masters) == 1:
            return _open_here(leg, unconnected[0])
        return self._open_side_by_side(leg, unconnected)

    def _open_side_by_side(self, leg: Leg, unconnected: list[Master]) -> bool:
        """Open connections to all unconnected masters at once; after a quorum, wait as long again for the others.

        Return False if other calls have taken the new connections, and there is no room for more.
        """
        reports: SimpleQueue[tuple[Master, Failure | ConfigurationError | None]] = self._platform.queue()
        waiting = dict.fromkeys(unconnected)  # a set that keeps the order
        for master in unconnected:
            if master.pool.has_room or not leg.is_call:
                master.open_later(reports, is_call=leg.is_call)
        began, until = self._clock(), leg.round.until
        while waiting and self._clock() < until:
            try:
                master, trouble = reports.get(timeout=min(LOOK_SECONDS, max(0.0, until - self._clock())))
            except Empty:
                pass
            else:
                if trouble is not None and master in waiting:
                    waiting.pop(master)
                    leg.round.fail(master, _judge(leg, master, trouble))
            now = self._clock()
            leg.check_out(waiting, now)
            waiting = {master: None for master in leg.unconnected if master in waiting}
            if leg.is_call and waiting and leg.without_room:
                return False
            if len(leg.connections) >= self._panel.quorum:
                until = min(until, now + grace_seconds(now - began))
        leg.do_without(waiting)
        return True

    # Reading --------------------------------------------------------------------------------------------------------

    def _read(self, leg: Leg) -> None:
        if len(leg.connections) == 1:
            self._read_one(leg)
        elif leg.connections:
            self._read_whoever_is_ready(leg)

    def _read_one(self, leg: Leg) -> None:
        connection = leg.connections[0]
        try:
            connection.read(leg.round)
        except NETWORK_ERRORS as error:
            leg.drop(connection, error)

    def _read_whoever_is_ready(self, leg: Leg) -> None:
        try:
            bundle = self._bundles.pop()
        except IndexError:
            bundle = Bundle(self._platform)
        bundle.take(leg.connections)
        round_, poll, by_fileno = leg.round, bundle.poll, bundle.by_fileno
        while round_.missing and not round_.is_certain:
            ready = poll(max(0.0, round_.until - self._clock()) * 1000)
            if not ready:
                break
            for fileno, _ in ready:
                connection = by_fileno[fileno]
                try:
                    connection.receive()
                except NETWORK_ERRORS as error:
                    bundle.drop(fileno)
                    leg.drop(connection, error)
        self._bundles.append(bundle)


def _open_here(leg: Leg, master: Master) -> bool:
    """Open a connection to the only master of `leg`; return False if there is no room for one."""
    try:
        connection = master.pool.open_for_call() if leg.is_call else master.pool.open()
        if connection is None:
            return False
        leg.connections.append(connection)
    except NETWORK_ERRORS as error:
        leg.round.fail(master, master.failed(error, sent=False))
    except ConfigurationError as error:
        if leg.strict and not master.facts.was_sound:
            raise
        leg.round.fail(master, master.turned_out(error))
    return True


def _judge(leg: Leg, master: Master, trouble: Failure | ConfigurationError) -> Failure:
    """Return the `Failure` that a reconnector has reported; if `strict`, raise a `ConfigurationError` instead."""
    if isinstance(trouble, Failure):
        return trouble
    if leg.strict:
        raise trouble
    return master.misconfigured(trouble)
