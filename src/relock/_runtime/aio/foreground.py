"""What one event loop does for the tasks that use a client: it carries out what flows ask for, and never waits."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from queue import Empty
from typing import Any

from relock._core.call_record import Enter, Step
from relock._core.effects import Answer, Ask, Failure, Handed, Leave, Listen, Park, Pause, Undo
from relock._core.quorum import NEVER, quorum_of
from relock._errors import ClientClosedError
from relock._runtime.aio.link import Link
from relock._runtime.aio.loop_inbox import TIMER_SECONDS_MAX, LoopInbox
from relock._runtime.aio.loop_round import LoopRound
from relock._runtime.session.keeper import Keeper
from relock._runtime.wakeups.hub import Hub
from relock._runtime.wakeups.waiter import Waiter

Flow = Generator[Step, Any, Any]


class Foreground:
    """The driver of flows on one loop, with a link to each master. See `relock._core.effects` for the contract.

    What works in the background, the watchdog, the janitor and the readers of the subscriptions, are the threads of the
    session: they go on while the loop stands still.
    """

    def __init__(self, session: Keeper, loop: asyncio.AbstractEventLoop) -> None:
        self.session = session
        self._loop = loop
        self._clock = session.clock
        self._masters = session.masters
        self._quorum = quorum_of(len(self._masters))
        self._spared = len(self._masters) - self._quorum
        self._links = [Link(master, loop, self._make_room) for master in self._masters]
        self._in_line: deque[asyncio.Future[None]] = deque()  # tasks that wait for room among the requests
        self._coming = 0  # those of them whose turn it is, and that have not come yet
        self._parked: dict[LoopInbox, None] = {}  # where sleeping tasks are woken
        self.is_closed = False
        self._handlers: dict[type, Callable[[Any], Coroutine[Any, Any, Any]]] = {
            Ask: self.ask,
            Listen: self._listen,
            Park: self._park,
            Leave: self._leave,
            Undo: self._undo,
            Enter: self._enter,
            Pause: self._pause,
        }

    async def run(self, flow: Flow) -> Any:
        """Carries out what `flow` asks for, to its end; returns what the flow returns.

        A flow goes on only when its next request can be sent at once: so the moment at which it says that it asks, from
        which leases and time limits count, is the one at which it does.
        """
        handlers, result = self._handlers, None
        try:
            while True:
                if self._in_line or self._room() <= 0:
                    await self._wait_for_room()
                effect = flow.send(result)
                result = await handlers[effect.__class__](effect)
        except StopIteration as end:
            return end.value

    # Room -----------------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """How many tasks more may send a request now: a quorum of the masters takes them, or is being connected."""
        if self._quorum == 1:
            return self._links[0].room - self._coming
        rooms = sorted([link.room for link in self._links], reverse=True)
        return rooms[self._quorum - 1] - self._coming

    async def _wait_for_room(self) -> None:
        place = self._loop.create_future()
        self._in_line.append(place)
        try:
            await place
        except BaseException:
            if place in self._in_line:
                self._in_line.remove(place)
            elif not place.cancelled():
                self._coming -= 1
                self._make_room()  # its turn is the next one's
            raise
        self._coming -= 1
        if self._in_line:
            self._loop.call_soon(self._make_room)  # if this one sends nothing, no reply would let the next one in

    def _make_room(self) -> None:
        """Replies have come: those who are first in line may send."""
        while self._in_line and self._room() > 0:
            place = self._in_line.popleft()
            if not place.done():
                self._coming += 1
                place.set_result(None)

    # Effects --------------------------------------------------------------------------------------------------------

    async def ask(self, ask: Ask) -> list[Answer]:
        """Asks all masters, or those that are named."""
        if not ask.ends:
            self._check_open()
        count = len(ask.calls)
        answers: list[Answer] = [(*master.no_reply_yet,) * count for master in self._masters]
        round_ = LoopRound(ask, self._clock(), answers, done=self._loop.create_future(), spared=self._spared)
        links = self._links if ask.only is None else self._only(ask.only, round_)
        self._send(round_, links)
        try:
            if not round_.done.done():
                self._wake_in_time(round_, links)
            await round_.done
        finally:
            round_.forget()
        if not ask.ends:
            self._raise_mistakes(links)
        return answers

    def _only(self, numbers: frozenset[int], round_: LoopRound) -> list[Link]:
        """The links to the masters with these numbers; the others' answers say that they were not asked."""
        for number, master in enumerate(self._masters):
            if number not in numbers:
                round_.fail(master, Failure(master.address, "it was not asked", sent=False))
        return [self._links[number] for number in sorted(numbers)]

    def _send(self, round_: LoopRound, links: list[Link]) -> None:
        """To those that are connected at once; to the others once they are, unless a quorum is."""
        connected = [link for link in links if link.is_connected]
        is_enough = len(connected) >= self._quorum
        round_.missing = len(links)
        for link in links:
            if link in connected:
                link.ask(round_)
            elif is_enough:
                link.open()
                round_.miss(link.master, link.master.unconnected())
            else:
                link.ask_later(round_)

    def _wake_in_time(self, round_: LoopRound, links: list[Link]) -> None:
        """Wakes the asker when its time is over, and what has come by then is taken."""
        left = round_.until - self._clock()
        if left > 0:
            round_.timer = self._loop.call_later(min(left, TIMER_SECONDS_MAX), self._wake_in_time, round_, links)
            return
        for link in links:
            link.take()
        round_.wake()

    def _raise_mistakes(self, links: list[Link]) -> None:
        for link in links:
            if link.config_error is not None and not link.master.was_sound:
                raise link.config_error

    async def _listen(self, listen: Listen) -> bool:
        self._check_open()
        hub = self.session.hub
        hub.register(listen.owner, listen.keys, self._inbox)
        return hub.listen(NEVER) or await self._hears(hub, listen.until)

    async def _hears(self, hub: Hub, until: float) -> bool:
        """Whether a quorum confirms the subscription until `until`."""
        rung = self._inbox()
        hub.confirmed.join(rung)  # Mark, then look: a change after the look rings
        try:
            while not hub.is_confirmed():
                left = until - self._clock()
                if left <= 0:
                    return False
                with suppress(Empty):
                    await rung.take(left)
            return True
        finally:
            hub.confirmed.leave(rung)

    def _inbox(self) -> LoopInbox:
        return LoopInbox(self._loop)

    async def _park(self, park: Park) -> list[Handed]:
        session = self.session
        waiter = session.hub.register(park.owner, park.keys, self._inbox)
        session.begin_park(waiter, park)
        await self._sleep(waiter, park)
        self._check_open()
        return session.hub.handed_to(waiter)

    async def _sleep(self, waiter: Waiter, park: Park) -> None:
        inbox = waiter.wakes
        if not isinstance(inbox, LoopInbox):
            raise AssertionError("a task's waiter has a task's inbox")
        gathering = waiter.gather(park.until, self._quorum, self.session.hub.gather_seconds)
        self._parked[inbox] = None  # Mark, then look: `close` finds it, or this finds it closed
        self._check_open()
        try:
            until = next(gathering)
            while True:
                until = gathering.send(await inbox.take(until - self._clock()))
        except (Empty, StopIteration):
            pass
        finally:
            self._parked.pop(inbox, None)
        waiter.woke()

    async def _leave(self, leave: Leave) -> None:
        self.session.hub.forget(leave.owner)

    async def _undo(self, undo: Undo) -> None:
        self.session.undo_attempt(undo)

    async def _enter(self, enter: Enter) -> bool:
        gates, who = self.session.gates, asyncio.current_task(self._loop)
        if gates.try_enter(enter.record, enter.key, who):
            return True
        inbox = self._inbox()
        waiting = gates.wait(*enter, who, inbox)
        try:
            while True:
                seconds = next(waiting)
                with suppress(Empty):
                    await inbox.take(seconds)
        except StopIteration as end:
            return bool(end.value)
        finally:
            waiting.close()

    async def _pause(self, pause: Pause) -> None:
        await asyncio.sleep(pause.seconds)

    def _check_open(self) -> None:
        """Raises `ClientClosedError` once the client, or what it has of this loop, was closed."""
        if self.is_closed:
            raise ClientClosedError("the client is closed: make a new one")
        self.session.check_open()

    def close(self) -> None:
        """Ends the waits, and closes the links; on its loop, or when that is closed."""
        self.is_closed = True
        for inbox in self._parked.copy():
            inbox.put(None)
        for link in self._links:
            link.close()
