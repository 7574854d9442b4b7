"""Part of a client on one event loop: it carries out the effects of flows, and never blocks the loop."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import attrgetter
from queue import Empty
from typing import Any

from relock._core.asking import Round, check_usable
from relock._core.call_record import CallRecord, Enter, OvertakenError, Step
from relock._core.calls import Calls
from relock._core.effects import Answer, Ask, Exchange, Handed, Leave, Listen, Park, Pause, Undo
from relock._core.hold import FOREVER
from relock._core.pulse import Pulse
from relock._core.quorum import NEVER
from relock._errors import ClientClosedError
from relock._owner import Owner, TaskRef, running_loop, serials
from relock._runtime.aio.alarms import Alarms
from relock._runtime.aio.line import Line
from relock._runtime.aio.link import Link, send_over
from relock._runtime.aio.loop_hub import give_up, hub_for
from relock._runtime.aio.loop_inbox import Inboxes, LoopInbox
from relock._runtime.aio.on_thread import on_thread
from relock._runtime.masters.master import Master
from relock._runtime.session.session import Session
from relock._runtime.wait_queue import Waiting

Flow = Generator[Step, Any, Any]

_room_of: Callable[[Link], int] = attrgetter("room")
_load_of: Callable[[Link], int] = attrgetter("load")

LINKS_MAX = 16  # with ``min_replicas``: connections of one loop to a master


class Foreground:
    """Driver of flows on one loop, with a link to each master; `relock._core.effects` has the contract.

    The watchdog and the janitor are threads of the session, so they go on while the loop stands still. The loop has a
    hub of its own for its tasks that wait.

    Args:
        stall_limit: seconds; the holds of a loop that stands still for longer are not renewed. Infinity: always renew.

    Attributes:
        calls: the calls of tasks, as flows.
        client: the ``<client>`` in the names of the holds that tasks take.
        is_closed: True once no call may go on.
        pulse: shows whether the loop turns.
    """

    calls: Calls
    client: bytes
    is_closed: bool
    loop: asyncio.AbstractEventLoop
    pulse: Pulse
    session: Session

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop, stall_limit: float) -> None:
        self.session = session
        self.loop = loop
        self.pulse = Pulse(stall_limit)
        self._clock = session.clock
        self._panel = session.panel
        self._quorum = session.quorum
        self._line = Line(loop, session.clock, self._room)
        self._inboxes = Inboxes(loop, session.clock, self.pulse)
        self._hub = hub_for(session, self._inboxes)
        self.client = self._hub.client.encode()
        self._links_of: dict[Master, list[Link]] = {}  # links to nodes of a Cluster are made when they are needed
        for master in self._servers:
            self._link_for(master)
        self._deadlines = Alarms(loop, session.clock, self._overdue)
        self._lone = None if session.lone not in self._servers else self._link_for(session.lone)
        self.calls = Calls(session, session.interrupted_of_tasks, self._hub, is_crowded=lambda: self._room() <= 0)
        self._idle: dict[LoopInbox, None] = {}  # inboxes of the tasks that sleep
        self._records: dict[CallRecord, None] = {}  # of the calls that are under way
        self._busy = 0  # the number of calls under way, without those that sleep until they are woken
        self.is_closed = False
        self._handlers: dict[type, Callable[[Any], Coroutine[Any, Any, Any]]] = {
            Exchange: self._exchange,
            Ask: self.ask,
            Listen: self._listen,
            Park: self._park,
            Leave: self._leave,
            Undo: self._undo,
            Enter: self._enter,
            Pause: lambda pause: asyncio.sleep(pause.seconds),
        }
        session.foregrounds[self] = None  # Mark, then look: `close` finds it, or this finds the session closed
        if session.closed and not session.is_closing:
            session.hubs.stop(self._hub)

    @property
    def is_in_use(self) -> bool:
        """True while a call is under way that may have to undo a grant; after `stop`, sleeping calls count, too."""
        return (self._busy > 0 or (self.is_closed and bool(self._idle))) and not self.loop.is_closed()

    async def run(self, flow: Flow, record: CallRecord | None = None, until: float = FOREVER) -> Any:
        """Carry out what `flow` asks for, to its end; return what the flow returns.

        A flow goes on only when its next request can be sent at once. So the request really leaves at the moment that
        the flow notes, from which leases and time limits count.

        Args:
            flow: the call.
            record: the notes by which the call is undone if the loop is closed in the middle of it.
            until: when the caller's own time is over; then the flow goes on, and its request may have to wait.

        Raises:
            RuntimeError: no task awaits this.
            OvertakenError: the loop stood still, and another caller of the same owner has undone the call.
        """
        handlers, line, result, has_begun = self._handlers, self._line, None, False
        suspended: list[None] = [None]  # `CallRecord.claim` takes the item out; inlined below, to save a call
        is_awaiting = True
        task = asyncio.current_task(self.loop)
        if task is None:
            raise RuntimeError("a call was awaited outside a task of asyncio: await it in a task")
        if record is not None:
            record.task, record.suspended = task, suspended
            self._records[record] = None
        self._busy += 1
        try:
            while True:
                ahead = line.under_way if has_begun else line.places
                if (ahead or self._room() <= 0) and not (has_begun and self._clock() >= until):
                    self._busy -= 1
                    try:
                        await line.wait(until, has_begun=has_begun)
                    finally:
                        self._busy += 1
                has_begun = True
                is_awaiting = False
                try:
                    suspended.pop()  # Claim, then act
                except IndexError:
                    is_awaiting = True
                    raise OvertakenError from None
                effect, result = flow.send(result), None  # drop the last answer: thousands of calls may wait here
                suspended.append(None)
                is_awaiting = True
                result = await handlers[effect.__class__](effect)
        except StopIteration as end:
            return end.value
        finally:
            self._busy -= 1
            if record is not None:
                self._records.pop(record, None)
                record.is_overtaken = is_awaiting and not record.claim()
                record.suspended = None

    def ask_for_sign_of_life(self) -> None:
        """Have the loop answer for its `pulse` in its next turn; from any thread."""
        self._on_loop(self._answer)

    def _answer(self) -> None:
        self._hub.tend()  # Hear, then answer
        if self.pulse.answer():
            self.session.watchdog.poke()  # to renew holds whose renewal was stopped
            self.session.janitor.beat_now()  # to restore places that were given up

    # Room -----------------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Return how many more requests a quorum of the links takes now; below 1, tasks must wait."""
        if (lone := self._lone) is not None:  # `Link.room` is inlined here, to save a call
            under_way = 0 if lone.connection is None else len(lone.connection.in_flight) + len(lone.waiting)
            return lone.in_flight_max - under_way - self._line.coming
        rooms = sorted([max(map(_room_of, links)) for links in self._links_of.values()], reverse=True)
        if self._quorum == 1:  # a task that comes may be about to send to any node of a Cluster
            return min(rooms, default=Link.in_flight_max) - self._line.coming
        return rooms[self._quorum - 1] - self._line.coming

    @property
    def _servers(self) -> list[Master]:
        """Servers that are asked: the masters, or the nodes of a Cluster."""
        return [server for master in self.session.masters for server in master.servers]

    def _link_for(self, master: Master) -> Link:
        """Return the link to a master with the least load."""
        links = self._links_of.get(master)
        if links is None:
            self._leave_retired()
            # A call that waits for replicas delays the calls after it on its connection, so there are several.
            count = LINKS_MAX if self.session.options.min_replicas else 1
            links = [Link(master, self.loop, self._line, self._hub) for _ in range(count)]
            self._links_of[master] = links
        return links[0] if len(links) == 1 else min(links, key=_load_of)

    def _leave_retired(self) -> None:
        """Close the links to nodes of a Cluster that serve nothing any more, and owe nothing."""
        for master in self._links_of.keys() - self._servers:
            if not any(link.load for link in self._links_of[master]):
                for link in self._links_of.pop(master):
                    link.close()

    def _mark_idle(self, inbox: LoopInbox) -> None:
        """Note that the caller sleeps from now on, until something comes to its `inbox`."""
        self._busy -= 1
        self._idle[inbox] = None  # Mark, then look: `stop` finds the inbox, or the caller finds this closed

    def _mark_busy(self, inbox: LoopInbox) -> None:
        """Note that the caller sleeps no more."""
        self._busy += 1
        self._idle.pop(inbox, None)

    # Effects --------------------------------------------------------------------------------------------------------

    def _exchange(self, exchange: Exchange) -> Coroutine[Any, Any, list[Answer]]:
        """Send one prepared request; at once if there is a lone master whose link takes it, else as `ask` does."""
        if (lone := self._lone) is not None:
            answers, done = [lone.master.no_reply_yet], self.loop.create_future()
            round_ = Round(exchange, exchange.sent_at, answers, done=done, carriers=(lone,))
            if lone.send_at_once(round_):
                return self._answers_to(round_)
        return self.ask(exchange)

    async def ask(self, asked: Ask | Exchange) -> list[Answer]:
        """Ask all masters, or those that `asked` names, or the nodes that serve the locks; return their answers."""
        if not asked.ends:
            self.check_open()
        route = partial(self._panel.route, asked, strict=not asked.ends)  # on a thread where nodes must be asked
        way = route() if self._panel.knows_way else await on_thread(self.session.platform, self.loop, route)
        while parts := way.parts(self._clock()):
            for part in parts:
                send_over([self._link_for(master) for master in part.masters], part.round, self._panel, self._clock)
            for part in parts:
                await self._answers_to(part.round)
            if not asked.ends:
                check_usable([master.facts.config_error for part in parts for master in part.masters])
        return way.answers

    async def _answers_to(self, round_: Round) -> list[Answer]:
        """Wait until a round has the answers that its asker needs, or its time is over; return the answers."""
        done: Any = round_.done
        deadlines, until = self._deadlines, round_.until
        try:
            if not done.done():
                deadlines.due[round_] = until
                if not round_.sent_at <= deadlines.looks_at <= until:
                    deadlines.look_by(until)
            await done
        finally:
            round_.done = None
            deadlines.due.pop(round_, None)
        return round_.answers

    def _overdue(self, round_: Round, at: float, now: float) -> None:
        """Wake the asker of a round whose time is over, after reading all that has come over the round's carriers.

        If the loop calls this late, the masters first get as much time once more, but at most a node timeout. The
        socket may have been full: then more replies follow when it has been read.
        """
        for carrier in round_.carriers:
            carrier.take()
        if round_.is_late or not round_.is_awaited:
            self._deadlines.due.pop(round_, None)
            round_.wake()
        else:
            round_.is_late = True
            self._deadlines.due[round_] = now + min(now - at, self.session.node_timeout)

    async def _listen(self, listen: Listen) -> bool:
        self.check_open()
        hub = self._hub
        hub.register(listen.owner, listen.keys)
        if hub.listen(listen.keys, NEVER):
            return True
        inbox, (queue, is_heard) = LoopInbox(self._inboxes), hub.listening(listen.keys)
        return await self._wait_out(queue.looks(is_heard, listen.until, self._clock, inbox), inbox)

    def _enter(self, enter: Enter) -> Coroutine[Any, Any, bool]:
        inbox = LoopInbox(self._inboxes)
        return self._wait_out(self.session.gates.wait(*enter, enter.record.task, inbox), inbox)

    async def _wait_out(self, waiting: Waiting, inbox: LoopInbox) -> bool:
        """Wait as `waiting` says, for tokens that come to `inbox`; return what `waiting` returns."""
        self._mark_idle(inbox)
        try:
            self.check_open()
            while True:
                seconds = next(waiting)
                with suppress(Empty):
                    await inbox.take(self._clock() + seconds)
                self.check_open()
        except StopIteration as end:
            return bool(end.value)
        finally:
            self._mark_busy(inbox)
            waiting.close()

    async def _park(self, park: Park) -> list[Handed]:
        """Sleep as `Park` says. Ten thousand tasks may sleep here, so this has a single frame, and few variables."""
        session, hub = self.session, self._hub
        waiter = hub.waiters.get(park.owner) or hub.register(park.owner, park.keys)
        session.begin_park(waiter, park)
        inbox = waiter.wakes
        if not isinstance(inbox, LoopInbox):
            raise AssertionError("a task's waiter has a task's inbox")
        self._mark_idle(inbox)
        try:
            if self.is_closed or session.closed:
                self.check_open()
            if self._quorum > 1:
                await inbox.feed(waiter.gather(park.until, self._quorum, hub.gather_seconds))
            elif (woken := inbox.sleep(park.until)) is not None:
                await woken
        finally:
            inbox.wake_up()
            self._mark_busy(inbox)
        waiter.woke()
        if self.is_closed or session.closed:
            self.check_open()
        return hub.handed_to(waiter)

    async def _leave(self, leave: Leave) -> None:
        self._hub.forget(leave.owner)

    async def _undo(self, undo: Undo) -> None:
        self.session.undo_attempt(undo)

    def check_open(self) -> None:
        """Raise `ClientClosedError` once the client, or its part on this loop, was closed."""
        if self.is_closed:
            raise ClientClosedError("the client is closed: make a new one")
        self.session.check_open()

    # The end --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the waits; from any thread. Calls that await an answer go on: see `is_in_use`."""
        self._wake_all()
        self._on_loop(self._line.dismiss)

    def _wake_all(self) -> None:
        """Wake all callers that sleep; they find this foreground closed."""
        self.is_closed = True
        for inbox in self._idle.copy():
            inbox.put(None)

    def close(self) -> None:
        """Have the loop close the links; from any thread. `is_open` is true until the loop has done so."""
        self._on_loop(self._close)

    @property
    def is_open(self) -> bool:
        """True while there may be connections. If the loop is closed, first undo its calls and close these."""
        self.end_if_closed()
        return self in self.session.foregrounds

    def end_if_closed(self) -> None:
        """Undo the calls of the loop, and close its connections, if the loop is closed."""
        if self.loop.is_closed():
            self.abandon()

    def end_if_stopped(self) -> None:
        """Undo the calls of the loop, and close its connections, if the loop does not run; at the process's end."""
        if not self.loop.is_running():
            self.abandon()

    def renew(self) -> None:
        """Have the links authenticate with new credentials; from any thread."""
        self._on_loop(self._renew)

    def _renew(self) -> None:
        for link in self._links():
            link.renew()

    def _on_loop(self, do: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(do)
        except RuntimeError:  # the loop is closed
            self.abandon()

    def abandon(self) -> None:
        """Have the calls of a loop that runs no more undone, as its tasks never go on, and close the connections."""
        self.is_closed = True
        for record in self._records.copy():
            if self._records.pop(record, self) is None and record.claim():  # else another thread undoes the call
                self.session.interrupted_of_tasks.undo_acquire(record)
        self._close()

    def _close(self) -> None:
        if self.loop.is_closed():
            self._line.places.clear()
        else:
            self._wake_all()  # the session may have been closed without this foreground
            self._line.dismiss()
        self._deadlines.close()
        self._inboxes.alarms.close()
        for link in self._links():
            link.close()
        try:
            del self.session.foregrounds[self]
        except KeyError:  # another thread has closed it
            return
        give_up(self.session, self._hub)

    def _links(self) -> Iterable[Link]:
        return chain.from_iterable(self._links_of.values())


class _Tasks(threading.local):
    """Tasks of the loop that each thread runs, kept by thread: so only one thread adds tasks to a dict."""

    def __init__(self) -> None:
        known: dict[weakref.ref[asyncio.Task[Any]], Owner] = {}
        self.known = known  # a WeakKeyDictionary would run Python code at each look-up
        self.forget = lambda task: known.pop(task, None)  # any thread may collect the task, and must find this dict


_tasks = _Tasks()


def current_task() -> Owner | None:
    """Return the task, as an owner, that the calling thread's event loop runs; None outside a task.

    The task object identifies a task, because other tasks may have the same name, or later the same id. A context
    variable would not do: a child copies its parent's context, and would nest in the parent's hold.
    """
    loop = running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    if task is None:
        return None
    tasks = _tasks
    who = tasks.known.get(weakref.ref(task))
    if who is None:
        who = tasks.known[weakref.ref(task, tasks.forget)] = Owner(next(serials), TaskRef(task), None, takes_turns=True)
    return who
