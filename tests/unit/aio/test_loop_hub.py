"""The hub of an event loop: its loop hears every message, whatever becomes of the connection and of the loop.

Each test has real loops and a master with one line, and writes the messages on that line.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from support.instructions import Interrupt, Strike
from support.published import CONFIRMED, KEYS, FakeMaster, Ignores, published

from relock._core.hold import FOREVER
from relock._core.pulse import Pulse
from relock._core.quorum import NEVER
from relock._runtime.aio.loop_hub import QUIET_SECONDS, LoopHub, LoopSubscription, hub_for
from relock._runtime.aio.loop_inbox import Inboxes
from relock._runtime.machine import THREADS
from relock._runtime.net.loop_channel import CHUNK_BYTES, LoopChannel
from relock._runtime.wakeups.hubs import Hubs
from relock._runtime.wakeups.subscription import PING
from relock._runtime.wakeups.waiter import Waiter

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
SOON = 20.0
WAITER = b"me.1:1@3000"
WAKE = published(b"wake 1@3000 a")
GRANT = published(b"grant 1@3000 ab.7 200 100 3000 run:repl a")
PONG = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"


class Told(Ignores):
    """Listener that notes the grants which are given back."""

    def __init__(self) -> None:
        self.unclaimed_holds: list[bytes] = []

    def unclaimed(self, _keys: Any, owner: bytes, _token: int) -> None:
        self.unclaimed_holds.append(owner)


class Scene:
    """A client with one master, whose tasks run on one loop after another."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.master = FakeMaster()
        self.lines = [self.master]
        self.told = Told()
        self.session: Any = SimpleNamespace(
            client_id="me", hubs=Hubs(), prefix="lock", masters=(self.master,), platform=THREADS, reports=self.told
        )
        self._new_loop = new_loop
        self.begin_loop()

    def begin_loop(self) -> None:
        """Make another loop, with a hub; the last loop must be closed."""
        self.runner = asyncio.Runner(loop_factory=self._new_loop)
        self.loop = self.runner.get_loop()
        self.hub: LoopHub = hub_for(self.session, Inboxes(self.loop, THREADS.clock, Pulse(FOREVER)))

    def end_loop(self) -> None:
        """Close the loop, and leave its hub to the next one."""
        self.runner.close()
        self.session.hubs.spare.append(self.hub)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(work, SOON))

    @property
    def subscription(self) -> LoopSubscription:
        return self.hub.subscriptions[0]

    def listen(self) -> Waiter:
        """Return a waiter, whose hub has subscribed."""
        waiter = self.hub.register(WAITER, KEYS)
        self.subscribe()
        return waiter

    def subscribe(self, line: FakeMaster | None = None) -> None:
        """Let the hub subscribe, over the line of the master, or over another one."""
        if line is not None:
            self.lines.append(line)
            self.master.line = line.line
        self.lines[-1].server.sendall(CONFIRMED)

        async def subscribe() -> None:
            self.subscription.ensure()
            await self.until(lambda: self.subscription.is_confirmed)

        self.run(subscribe())

    def begin_to_open(self) -> Callable[[], Any]:
        """Let the hub begin to subscribe; return what the thread that opens the connection does."""
        opening: list[Callable[[], Any]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(THREADS, "start", lambda run, _name: opening.append(run))
            self.subscription.ensure()
        return opening[0]

    async def until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            await asyncio.sleep(0.001)

    def runs_until(self, is_so: Callable[[], object]) -> None:
        self.run(self.until(is_so))

    def said(self) -> bytes:
        """Return the bytes that the client has sent over the last line since the last call."""
        with suppress(BlockingIOError):
            self.lines[-1].server.setblocking(False)
            return self.lines[-1].server.recv(10_000)
        return b""

    def end(self) -> None:
        for subscription in self.hub.subscriptions:
            subscription.stopping = True
        self.runner.close()
        self.hub.stop()
        for line in self.lines:
            line.end()


@pytest.fixture(params=LOOPS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(LOOPS[request.param])
    yield scene
    scene.end()


def test_a_hub_has_a_name_and_a_channel_of_its_own(scene: Scene) -> None:
    scene.listen()
    assert b"lock:client:me.1\r\n" in scene.said()
    assert next(scene.hub.names).startswith(b"me.1:")
    scene.runner.close()
    assert scene.session.hubs.waiter(WAITER) is scene.hub.waiters[WAITER]
    other = hub_for(scene.session, scene.hub.inboxes)
    assert other.client == "me.2"


def test_the_loop_hears_what_comes_for_its_tasks(scene: Scene) -> None:
    waiter = scene.listen()
    scene.master.server.sendall(WAKE)
    scene.runs_until(lambda: not waiter.wakes.empty())
    assert waiter.wakes.get_nowait() == 0


def test_a_task_is_woken_by_a_message_without_another_turn_of_the_loops_own_pipe(scene: Scene) -> None:
    """The loop has read the message itself, so it is awake, and its pipe needs no byte."""
    waiter: Any = scene.listen()
    scene.master.server.sendall(WAKE)

    async def wait() -> Any:
        loop: Any = scene.loop
        threadsafe = list[object]()
        waiter.wakes._inboxes.loop = SimpleNamespace(
            create_future=loop.create_future, call_soon_threadsafe=lambda *_: threadsafe.append("called")
        )
        item = await waiter.wakes.take(THREADS.clock() + SOON)
        return item, threadsafe

    assert scene.run(wait()) == (0, [])
    assert scene.hub.inboxes.thread == 0


def test_all_that_has_come_is_heard_at_once_where_something_else_would_go_first(scene: Scene) -> None:
    waiter = scene.listen()
    scene.master.server.sendall(WAKE)
    scene.hub.hear()
    assert waiter.wakes.get_nowait() == 0
    scene.hub.hear()
    assert waiter.wakes.empty()


def test_a_connection_that_has_ended_is_replaced_and_the_last_message_heard(scene: Scene) -> None:
    waiter = scene.listen()
    scene.said()
    scene.master.server.sendall(WAKE)
    scene.master.server.close()
    scene.runs_until(lambda: not scene.subscription.is_confirmed)
    assert waiter.wakes.get_nowait() == 0
    scene.subscribe(FakeMaster())
    scene.lines[-1].server.sendall(WAKE)
    scene.runs_until(lambda: not waiter.wakes.empty())


def test_a_connection_that_was_reset_is_found_though_the_loop_is_not_told(scene: Scene) -> None:
    """Errors of a connection make libuv stop looking at it, and uvloop calls no reader."""
    scene.listen()
    scene.master.server.close()  # with unread bytes, which resets the connection
    scene.hub.tend()
    assert not scene.subscription.is_confirmed


def test_a_connection_that_can_not_be_opened_is_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        monkeypatch.undo()
        raise ConnectionRefusedError

    monkeypatch.setattr(scene.master, "raw_connection", refuse)
    scene.listen()


def test_an_error_that_no_connection_should_have_is_told_and_the_connection_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        monkeypatch.undo()
        raise NotImplementedError("a fault")

    told: list[Any] = []
    scene.loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    monkeypatch.setattr(scene.master, "raw_connection", fail)
    scene.listen()
    assert [str(error) for error in told] == ["a fault"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_master_from_which_nothing_comes_is_pinged_and_one_that_does_not_answer_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    scene.listen()
    scene.said()
    now = THREADS.clock()
    for look in range(5):
        moment = now + QUIET_SECONDS * (look + 1)
        monkeypatch.setattr(scene.subscription, "_clock", lambda moment=moment: moment)
        scene.run(asyncio.to_thread(scene.loop.call_soon_threadsafe, scene.hub.tend))
        if scene.said() == PING and answers:
            scene.master.server.sendall(PONG)
        scene.run(asyncio.sleep(0))
    assert scene.subscription.is_confirmed is answers


def test_nothing_is_sent_where_nobody_waits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.listen()
    scene.hub.forget(WAITER)
    scene.said()
    now = THREADS.clock()
    monkeypatch.setattr(scene.subscription, "_clock", lambda: now + 2 * QUIET_SECONDS)
    scene.hub.tend()
    assert scene.said() == b""


@pytest.mark.parametrize("how", ["look", "doubt"])
def test_the_subscription_moves_when_another_thread_finds_the_master_elsewhere(scene: Scene, how: str) -> None:
    scene.listen()
    scene.subscription.look()
    scene.subscription.doubt()
    scene.run(asyncio.sleep(0.01))
    assert scene.subscription.is_confirmed, "a new connection to the same master stays confirmed"
    if how == "look":
        scene.master.incarnation = b"another:repl"
    else:
        scene.subscription._stands_since -= 100.0
    scene.run(asyncio.to_thread(getattr(scene.subscription, how)))
    scene.runs_until(lambda: not scene.subscription.is_confirmed)


def test_the_next_loop_reads_on_where_the_last_one_was_closed(scene: Scene) -> None:
    """Messages between the two loops, or half of one, are for waiters that have left, or for the one that comes now."""
    scene.listen()
    scene.hub.forget(WAITER)
    scene.master.server.sendall(GRANT + WAKE[:20])
    first = scene.hub
    scene.end_loop()
    scene.begin_loop()
    assert scene.hub is first
    assert scene.subscription.is_confirmed
    connection: Any = scene.subscription._connection
    assert not isinstance(connection.channel._opened, LoopChannel), "the channels of closed loops are not kept"
    assert scene.told.unclaimed_holds == [b"me.1:1@3000~ab.7"]
    waiter = scene.hub.register(WAITER, KEYS)
    assert waiter.wakes._inboxes.loop is scene.loop  # type: ignore[attr-defined]
    scene.master.server.sendall(WAKE[20:])
    scene.runs_until(lambda: not waiter.wakes.empty())


def test_a_client_that_is_closed_hears_what_came_for_a_loop_that_was_closed_before(scene: Scene) -> None:
    """A grant that no loop hears stays until its lease ends, however long ago its waiter has left."""
    scene.listen()
    scene.hub.forget(WAITER)
    scene.hub._left_at = NEVER
    scene.end_loop()
    scene.master.server.sendall(GRANT)
    scene.session.hubs.catch_up(THREADS.clock() + SOON)
    assert scene.told.unclaimed_holds == [b"me.1:1@3000~ab.7"]


def test_a_client_that_is_closed_waits_for_the_pong_of_a_loop_that_was_closed_before(scene: Scene) -> None:
    """Messages that were published before the pong have come with it."""
    scene.listen()
    scene.hub.forget(WAITER)
    scene.end_loop()
    scene.said()
    server = scene.master.server
    server.setblocking(True)

    def answer() -> None:
        if server.recv(1000) == PING:
            server.sendall(GRANT + PONG)

    answers = threading.Thread(target=answer)
    answers.start()
    scene.session.hubs.catch_up(THREADS.clock() + SOON)
    answers.join(SOON)
    assert scene.told.unclaimed_holds == [b"me.1:1@3000~ab.7"]


def test_the_next_loop_finds_at_once_that_the_connection_has_ended(scene: Scene) -> None:
    """A loop without that check would queue its first waiter where no message reaches it."""
    scene.listen()
    scene.end_loop()
    scene.master.server.close()
    scene.begin_loop()
    assert not scene.subscription.is_confirmed
    scene.subscribe(FakeMaster())


def test_the_next_loop_finds_at_once_that_the_master_has_moved(scene: Scene) -> None:
    """No loop was told of the move: its first waiter would be queued where no published message is heard."""
    scene.listen()
    scene.hub.forget(WAITER)
    scene.end_loop()
    scene.master.incarnation = b"another:repl"
    scene.subscription.look()
    scene.begin_loop()
    assert not scene.subscription.is_confirmed
    scene.subscribe(FakeMaster())


def test_only_one_loop_takes_over_a_hub(scene: Scene) -> None:
    scene.end_loop()
    first = scene.hub
    scene.begin_loop()
    assert scene.hub is first
    assert hub_for(scene.session, scene.hub.inboxes) is not first


def test_a_hub_that_no_loop_has_taken_over_gives_back_what_has_come_and_is_closed(scene: Scene) -> None:
    scene.listen()
    scene.hub.forget(WAITER)
    assert scene.session.hubs.are_attended, "the hub is attended: nothing else would find that its loop is closed"
    scene.master.server.sendall(GRANT)
    scene.end_loop()
    scene.session.hubs.stop_spare()
    assert scene.told.unclaimed_holds == [b"me.1:1@3000~ab.7"]
    assert scene.master.line._ours.fileno() == -1
    assert scene.session.hubs.all() == []
    assert not scene.session.hubs.are_attended
    scene.session.hubs.stop_spare()


def test_a_hub_that_is_stopped_hears_all_that_has_come_though_it_takes_many_reads(scene: Scene) -> None:
    """A grant that no loop hears stays until its lease ends."""
    scene.listen()
    scene.hub.forget(WAITER)
    count = 2 * CHUNK_BYTES // len(GRANT)
    scene.end_loop()
    scene.master.server.sendall(GRANT * count)
    scene.session.hubs.stop_spare()
    assert len(scene.told.unclaimed_holds) == count


@pytest.mark.parametrize("reader", ["a client that is closed", "the next loop", "a loop before", "a stop"])
def test_a_grant_is_heard_though_its_connection_was_being_opened_when_the_loop_was_closed(
    scene: Scene, reader: str
) -> None:
    """The master counts the connection as listening, and may have given a lock to a waiter that has left."""
    open_ = scene.begin_to_open()
    scene.master.server.sendall(CONFIRMED + GRANT)
    scene.end_loop()
    if reader == "a loop before":
        scene.begin_loop()
    open_()
    if reader == "the next loop":
        scene.begin_loop()
    elif reader == "a loop before":
        scene.runs_until(lambda: scene.told.unclaimed_holds)
    elif reader == "a stop":
        scene.session.hubs.stop_spare()
    else:
        scene.session.hubs.catch_up(THREADS.clock() + SOON)
    assert scene.told.unclaimed_holds == [b"me.1:1@3000~ab.7"]
    scene.hub.stop()
    assert scene.master.line._ours.fileno() == -1


def test_a_connection_that_was_opened_for_nobody_when_the_hub_was_stopped_is_closed(scene: Scene) -> None:
    open_ = scene.begin_to_open()
    scene.end_loop()
    scene.session.hubs.stop_spare()
    scene.master.server.sendall(CONFIRMED)
    open_()
    assert scene.master.line._ours.fileno() == -1


def test_a_forked_child_closes_its_copy_of_a_connection_that_was_opened_for_nobody(scene: Scene) -> None:
    open_ = scene.begin_to_open()
    scene.master.server.sendall(CONFIRMED)
    scene.end_loop()
    open_()
    scene.hub.abandon()
    assert scene.master.line._ours.fileno() == -1


def test_a_connection_that_was_being_opened_when_the_hub_was_stopped_is_closed(scene: Scene) -> None:
    open_ = scene.begin_to_open()
    scene.hub.stop()
    scene.master.server.sendall(CONFIRMED)
    open_()
    scene.runs_until(lambda: scene.master.line._ours.fileno() == -1)
    assert not scene.subscription.is_confirmed


def test_a_forked_child_closes_its_copy_without_a_word_to_the_loop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of the loop belong to parent and child: the parent would hear nothing any more."""
    scene.listen()
    removed = list[object]()
    monkeypatch.setattr(scene.subscription._connection.channel, "unwatch", lambda: removed.append("unwatched"))  # type: ignore[union-attr]
    scene.hub.abandon()
    assert scene.master.line._ours.fileno() == -1
    assert removed == []
    monkeypatch.undo()


def test_an_interrupt_of_the_loops_thread_loses_no_message() -> None:
    """An interrupt strikes at every instruction: the next look finds the read bytes, or gives the connection up."""
    for raise_at in range(1, 10_000):
        scene = Scene(asyncio.new_event_loop)
        waiter = scene.listen()
        scene.master.server.sendall(WAKE)
        try:
            with Strike(raise_at) as strike:
                scene.hub.hear()
        except Interrupt:
            pass
        scene.hub.hear()
        has_heard = not waiter.wakes.empty() or not scene.subscription.is_confirmed
        count = strike.count
        scene.end()
        assert has_heard, f"struck at {strike.where}"
        if count < raise_at:
            return
