"""An event loop that reads the subscriptions for its tasks: it hears every message, and gives the reading up in time.

Each test has a real loop, in a thread of its own, and no thread of a subscription.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from support.scene import LONG, Line, Scene, is_led_by, until

from relock._core.hold import FOREVER
from relock._core.pulse import Pulse
from relock._keys import lock_keys
from relock._runtime.aio.loop_inbox import Inboxes, LoopInbox
from relock._runtime.aio.loop_reader import LoopReader
from relock._runtime.machine import THREADS
from relock._runtime.net.loop_watch import LoopWatch
from relock._runtime.wakeups.term import Term
from relock._runtime.wakeups.waiter import Waiter

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class LoopScene(Scene):
    """As `Scene`, with a loop some of whose tasks wait."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop], of: "LoopScene | None" = None) -> None:
        super().__init__()
        if of is not None:  # another loop of the same client
            self.reading, self.waiters = of.reading, of.waiters
        self.loop = new_loop()
        self.orphans: list[str] = []
        self.reader = LoopReader(THREADS, self.loop, self.reading, lambda: self.orphans.append("orphaned"))
        self.inboxes = Inboxes(self.loop, self.reading.clock, self.reader, Pulse(FOREVER), lambda: None)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._stands = threading.Event()

    def do(self, work: Callable[[], Any]) -> Any:
        """Has the loop's thread do it."""

        async def called() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(LONG)

    def task_sleeps(self, name: str) -> "asyncio.Task[None]":
        """A task that waits, until it is woken."""
        waiter = Waiter(name.encode(), lock_keys("lock", "any"), self.inbox(), self.reading)
        self.waiters[name.encode()] = waiter

        async def wait() -> None:
            self.reader.sleeps()
            try:
                with suppress(asyncio.CancelledError):
                    await waiter.wakes.take(self.reading.clock() + LONG)  # type: ignore[attr-defined]
                    self.heard.append(name)
            finally:
                self.reader.woke()

        return self.do(lambda: self.loop.create_task(wait()))  # type: ignore[no-any-return]

    def inbox(self) -> Any:
        """Where a task of the loop is woken."""
        return LoopInbox(self.inboxes)

    @property
    def loop_leads(self) -> bool:
        return is_led_by(self.reading, self.reader)

    def stand_still(self) -> None:
        """The loop does nothing more until `go_on`."""
        stands = threading.Event()

        def stand() -> None:
            stands.set()
            self._stands.wait(LONG)

        self.loop.call_soon_threadsafe(stand)
        assert stands.wait(LONG)

    def go_on(self) -> None:
        self._stands.set()

    def stop(self) -> None:
        """The loop stops, and is closed with whatever its tasks do."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LONG)
        self.loop.close()

    def end(self) -> None:
        self.go_on()
        if not self.loop.is_closed():
            for task in self.do(lambda: asyncio.all_tasks(self.loop) - {asyncio.current_task()}):
                self.loop.call_soon_threadsafe(task.cancel)
            until(lambda: self.do(lambda: len(asyncio.all_tasks(self.loop))) == 1, what="the tasks have ended")
            self.do(self.reader.close)
            self.do(self.inboxes.close)
            self.stop()
        super().end()


@pytest.fixture(params=LOOPS)
def scene(request: pytest.FixtureRequest) -> Iterator[LoopScene]:
    scene = LoopScene(LOOPS[request.param])
    yield scene
    scene.end()


def leads(scene: LoopScene, name: str = "task") -> None:
    """One task of the loop waits, and the loop reads."""
    scene.task_sleeps(name)
    scene.share()
    until(lambda: scene.loop_leads and scene.do(lambda: bool(scene.reader._watches)), what="the loop reads")


def test_the_loop_hears_what_comes_for_its_tasks(scene: LoopScene) -> None:
    leads(scene)
    other = scene.task_sleeps("other")
    scene.line.say("other")
    assert scene.has_heard("other")
    scene.line.say("task")
    assert scene.has_heard("task")
    until(other.done, what="its task has ended")


def test_what_was_shared_before_a_task_waits_is_read_by_its_loop(scene: LoopScene) -> None:
    scene.sleeps("thread")
    scene.share()
    scene.line.say("thread")
    assert scene.has_heard("thread")
    scene.task_sleeps("task")
    scene.line.say("task")
    assert scene.has_heard("task")
    assert scene.loop_leads


def test_what_is_shared_while_the_loop_reads_is_read_as_well(scene: LoopScene) -> None:
    leads(scene)
    line = scene.another_line()
    scene.reading.share(scene.listen(line))
    line.say("task")
    assert scene.has_heard("task")


def test_a_loop_hears_by_a_thread_that_leads(scene: LoopScene) -> None:
    thread = scene.sleeps("thread")
    scene.share()
    until(lambda: thread.is_polling, what="the thread leads")
    scene.task_sleeps("task")
    assert not scene.loop_leads
    scene.line.say("task")
    assert scene.has_heard("task")
    assert scene.leads(thread)


def test_a_loop_leads_once_the_last_thread_has_left(scene: LoopScene) -> None:
    scene.sleeps("thread")
    scene.share()
    scene.task_sleeps("task")
    scene.line.say("thread")
    assert scene.has_heard("thread")
    until(lambda: scene.loop_leads, what="the loop leads")
    scene.line.say("task")
    assert scene.has_heard("task")


def test_a_thread_that_comes_does_not_wait_for_a_loop_that_stands_still(scene: LoopScene) -> None:
    leads(scene)
    scene.task_sleeps("first")
    scene.line.say("first")
    assert scene.has_heard("first")
    scene.stand_still()
    scene.sleeps("thread")
    scene.line.say("task", "thread")
    assert scene.has_heard("thread")
    assert "task" not in scene.heard
    scene.go_on()
    assert scene.has_heard("task"), "the thread has heard it for the loop"


def test_what_a_loop_that_stands_still_should_read_is_taken_back(scene: LoopScene) -> None:
    leads(scene)
    scene.stand_still()
    assert not scene.reading.take_back(scene.ear), "the loop leads"
    scene.reading.oust_loop()
    assert scene.reading.take_back(scene.ear)
    scene.line.say("task")
    scene.ear.hear(scene.line.take)
    scene.share()
    scene.go_on()
    assert scene.has_heard("task")
    scene.task_sleeps("another")
    until(lambda: scene.loop_leads, what="the loop leads again")
    scene.line.say("another")
    assert scene.has_heard("another")


def test_a_loop_is_not_ousted_while_it_reads(scene: LoopScene) -> None:
    """Two that read one socket would hear halves of messages."""
    begun, may_end = threading.Event(), threading.Event()
    act_on = scene.ear._act_on

    def act(name: bytes) -> None:
        begun.set()
        may_end.wait(LONG)
        act_on(name)

    scene.ear._act_on = act
    leads(scene)
    scene.task_sleeps("other")  # so that the loop stays in line
    scene.line.say("task")
    assert begun.wait(LONG)
    scene.reading.oust_loop()
    assert scene.loop_leads
    thread = scene.sleeps("thread")
    assert not scene.leads(thread)
    may_end.set()
    assert scene.has_heard("task")
    until(lambda: scene.leads(thread), what="the loop has let the role go, for a thread waits")


def term_of(scene: LoopScene) -> Term:
    """That of the loop which leads."""
    (term,) = scene.reading._role.values()
    assert isinstance(term, Term)
    return term


@pytest.mark.parametrize("step", ["close", "_look"])
def test_whoever_ousts_a_loop_takes_the_role_away_and_nobody_else_does(scene: LoopScene, step: str) -> None:
    """Else the loop would let it go, another one would lead, and the thief would take the role away from that one."""
    leads(scene)
    term = term_of(scene)
    assert term.try_claim("a thief")
    scene.sleeps("thread")
    scene.do(getattr(scene.reader, step))
    assert term_of(scene) is term
    assert not term.try_claim("another thief")
    scene.reading._role.clear()  # as the thief does
    scene.do(scene.reader._look)
    assert not scene.loop_leads


def test_whoever_comes_late_to_oust_a_loop_takes_the_role_away_from_nobody(scene: LoopScene) -> None:
    leads(scene)
    role, term = scene.reading._role, term_of(scene)
    thread = scene.sleeps("thread")
    until(lambda: scene.leads(thread), what="the thread leads")
    assert not scene.reading._oust(role, term)
    assert scene.leads(thread)
    scene.line.say("thread")
    assert scene.has_heard("thread")
    until(lambda: scene.loop_leads, what="the loop leads")
    scene.do(scene.reader.close)
    thread = scene.sleeps("another")
    assert not scene.reading._oust(role, term)
    assert scene.leads(thread)


def test_a_term_that_ended_as_the_loop_could_not_read_is_ended_by_nobody_else(
    scene: LoopScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms: list[Term] = []

    def full(self: LoopReader, term: Term) -> None:
        terms.append(term)
        self._leave()

    monkeypatch.setattr(LoopReader, "_watch", full)
    scene.task_sleeps("task")
    scene.share()
    until(lambda: terms, what="the loop has tried")
    scene.do(bool)
    assert not terms[0].try_claim("a thief")


def test_a_loop_that_is_stopped_is_called_once(scene: LoopScene) -> None:
    """Nobody knows whether it will run again; what waits for that must not pile up."""
    called: list[object] = []
    stopped: Any = SimpleNamespace(call_soon_threadsafe=called.append, is_closed=bool)
    reader = LoopReader(THREADS, stopped, scene.reading, bool)
    for _ in range(3):
        reader.wake()
    assert called == [reader._look]
    reader._look()
    reader.wake()
    assert len(called) == 2


@pytest.fixture
def other(scene: LoopScene) -> Iterator[LoopScene]:
    """Another loop of the same client."""
    other = LoopScene(asyncio.new_event_loop, of=scene)
    yield other
    scene.go_on()
    other.end()


def test_a_loop_whose_task_has_woken_leaves_the_reading_to_another_loop_at_once(
    scene: LoopScene, other: LoopScene
) -> None:
    """It may compute from now on, or be closed."""
    leads(scene)
    other.task_sleeps("other")
    assert not other.loop_leads
    scene.line.say("task")
    assert scene.has_heard("task")
    until(lambda: other.loop_leads, what="the other one leads")
    scene.stand_still()
    scene.line.say("other")
    assert other.has_heard("other")


def test_a_loop_that_comes_ousts_one_that_has_nobody_to_read_for(scene: LoopScene, other: LoopScene) -> None:
    leads(scene)
    scene.line.say("task")
    assert scene.has_heard("task")
    scene.stand_still()  # before it has let the role go
    scene.share()
    other.task_sleeps("other")
    scene.line.say("other")
    assert other.has_heard("other")


def test_a_loop_lets_the_role_go_a_moment_after_its_last_task_has_woken(scene: LoopScene) -> None:
    leads(scene)
    scene.line.say("task")
    assert scene.has_heard("task")
    until(lambda: not scene.loop_leads, what="the role is free")
    assert scene.reader not in scene.reading._loops
    assert scene.reading.take_back(scene.ear)


def test_a_loop_whose_last_task_has_given_up_lets_the_role_go_at_once(scene: LoopScene) -> None:
    called = []
    scene.ear.call = lambda: called.append("called")
    leads(scene)
    task = scene.task_sleeps("other")

    def give_up() -> bool:
        scene.reader.sleepers = 0
        scene.reader.gave_up()
        scene.reader.sleepers = 2  # as it was: they go on to wake
        return scene.loop_leads

    assert not scene.do(give_up)
    assert called, "the thread of the subscription reads at once"
    assert not task.done()


def test_a_loop_that_was_closed_while_it_led_is_told_when_a_thread_comes(scene: LoopScene) -> None:
    leads(scene)
    scene.stop()
    scene.sleeps("thread")
    scene.line.say("thread")
    assert scene.has_heard("thread")
    assert scene.orphans, "what it has left is ended"
    scene.reader.close()
    assert not scene.reader._watches


def test_a_message_that_was_not_acted_on_is_acted_on_with_the_next_one(scene: LoopScene) -> None:
    act_on, failures = scene.ear._act_on, iter([ZeroDivisionError()])

    def act(name: bytes) -> None:
        error = next(failures, None)
        if error is not None:
            raise error
        act_on(name)

    scene.ear._act_on = act
    scene.loop.set_exception_handler(lambda *_: None)
    leads(scene)
    scene.task_sleeps("other")
    scene.line.say("task")
    until(lambda: scene.ear.is_amid, what="the first has failed")
    scene.line.say("other")
    assert scene.has_heard("task")
    assert scene.has_heard("other")


def test_what_a_reader_has_left_is_acted_on_before_anything_more_comes(scene: LoopScene) -> None:
    scene.ear._replies.append(b"task")  # whoever has read it was struck
    leads(scene)
    assert scene.has_heard("task")


def test_a_connection_that_ends_is_given_up(scene: LoopScene) -> None:
    leads(scene)
    scene.line.theirs.close()
    until(lambda: scene.ear.error is not None, what="it is given up")
    until(lambda: not scene.loop_leads, what="nothing is left to read")
    assert not scene.do(lambda: scene.reader._watches)


def test_a_socket_that_was_given_up_is_not_read(scene: LoopScene) -> None:
    leads(scene)
    scene.stand_still()
    scene.line.say("task")
    scene.reading.unshare(scene.ear)
    scene.go_on()
    until(lambda: not scene.loop_leads, what="the loop has looked")
    assert not scene.heard
    assert scene.line.take() == b"task\n"


def test_a_loop_that_may_open_no_more_files_leaves_the_reading_to_others(
    scene: LoopScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(THREADS, "loop_watch", full)
    scene.task_sleeps("task")
    scene.share()
    until(lambda: scene.reader not in scene.reading._loops, what="it has left")
    assert scene.reading.take_back(scene.ear)


# A loop's own number for a socket --------------------------------------------------------------------------------


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_a_socket_that_gets_the_number_of_a_closed_one_is_watched(new_loop: Callable[[], Any]) -> None:
    """Where the loop watched the number that another thread closes, it would hear nothing on the next one."""
    loop, heard = new_loop(), list[str]()
    line, (ours, theirs) = Line(), socket.socketpair()
    number = line.fileno
    watch = LoopWatch(loop, number, lambda: heard.append("old"))
    line.ours.close()
    os.dup2(ours.fileno(), number)
    loop.add_reader(number, lambda: heard.append("new"))
    watch.close()
    theirs.sendall(b"it")
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    assert "new" in heard
    loop.remove_reader(number)
    os.close(number)
    loop.close()
    for one in (ours, theirs, line.theirs):
        one.close()


def test_what_is_closed_twice_closes_nobody_elses_file() -> None:
    loop, line = asyncio.new_event_loop(), Line()
    watch = LoopWatch(loop, line.fileno, bool)
    watch.close()
    other = os.dup(line.fileno)  # it gets the number of the watch
    watch.close()
    watch.forget()
    os.fstat(other)
    os.close(other)
    loop.close()
    line.close()


def test_a_child_closes_its_copies_and_leaves_the_loop_of_its_parent_alone() -> None:
    loop, line = asyncio.new_event_loop(), Line()
    heard: list[str] = []
    watch = LoopWatch(loop, line.fileno, lambda: heard.append("it"))
    (own,) = watch._own
    child = os.fork()
    if not child:
        watch.forget()
        try:
            os.fstat(own)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    line.say("it")
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    assert heard
    watch.close()
    loop.close()
    line.close()
