"""An event loop that stands still delays no thread, no other loop, and no caller with the ``owner=`` of its task.

In virtual time, on tasks and threads of one client: the loop stands still while its task is inside the gate of its
owner, with a request under way, or in line. When the loop turns again, the call of the task is carried out.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

pytest.importorskip("hiredis")

from support.proxy import Line

from contract.rigs.aio_virtual import AioVirtualRig
from contract.rigs.rig import Interrupted, Running, all_struck, calls, release_all
from relock import AsyncLock, Lock
from relock._core.call_record import CallRecord, Step
from relock._core.effects import Listen, Park

STUCK_SECONDS = 12.0
PROMPT_SECONDS = 4.0  # two looks, and the time of the masters
MESSAGE_SECONDS = 0.2  # less than any look; a release and its message take a few milliseconds
NAME, OWNER = "a", "job"


class Scene:
    """A client with threads, and with a task whose loop can stand still."""

    def __init__(self, rig: AioVirtualRig) -> None:
        self.rig = rig
        self.made = made = rig.client()
        self.threads: Lock = made._client.lock(NAME, owner=OWNER)
        self.tasks: AsyncLock = made._async.lock(NAME, owner=OWNER)
        self.session = made._client._session
        self.others: Lock = rig.client()._client.lock(NAME)
        rig.warm_up(made)

    def do(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do the work in the actor's task."""
        return self.rig._actor().do(work)

    def block(self, seconds: float = STUCK_SECONDS) -> None:
        """Let the loop stand still from its next turn on."""
        process = self.rig._process
        self.rig._actor()._loop.call_soon_threadsafe(process.sleep, seconds)
        process.sleep(0.001)

    def stuck(self, script: str, work: Callable[[], Coroutine[Any, Any, Any]], *, late: bool = False) -> Running:
        """Let the task send a request, and let the loop stand still before the reply comes.

        The masters act on the request at once; if it is `late`, only at `come_late`.
        """
        self.until_settled()
        hold = Line.hold_request if late else Line.hold_reply
        faults = self._late = [hold(line, calls(NAME, script)) for line in self.rig.lines]
        actor = self.rig._actor()
        running = self.rig.start(lambda: actor.do(work))
        self.rig.until(lambda: all_struck(faults), "every master has got the request")
        self.block()
        if not late:
            release_all(faults)
        return running

    def until_settled(self) -> None:
        """Wait until the janitor writes no count: a fault for a request of that kind would strike the janitor's."""
        holds = self.session.holds.all
        self.rig.until(lambda: not any(hold.settling for hold in holds()), "no count is being written")

    def come_late(self) -> None:
        """Let the request of the task reach the masters, if it has not yet."""
        release_all(self._late)

    def promptly(self, call: Callable[[], Any]) -> Any:
        """Make the call, which must end sooner than the loop stands still."""
        begin = self.rig.clock()
        result = call()
        assert self.rig.clock() - begin < PROMPT_SECONDS
        return result

    def until_count(self, count: int) -> None:
        """Wait until the owner has so many levels, here and on the masters, and no call is at the gate."""
        self.rig.until(lambda: self.threads.hold_count == count, f"{count} levels here")
        self.rig.until(lambda: self.rig.agree_on(NAME, count), f"{count} levels on the masters")
        self.rig.until(lambda: not self.session.gates._gates, "no call is at the gate")

    def end(self) -> None:
        """Release all levels, and check that no master has anything left."""
        while self.threads.owned():
            self.threads.release()
        self.rig.until_free(NAME, "all")
        assert self.others.acquire() is True


@pytest.fixture(params=[1, 3], ids=["one master", "three masters"])
def play(request: pytest.FixtureRequest, seed: int) -> Iterator[Callable[[Callable[[Scene], None]], None]]:
    rig = AioVirtualRig(request.param, seed)
    yield lambda test: rig.play(lambda: test(Scene(rig)))
    rig.close()


Play = Callable[[Callable[[Scene], None]], None]
WAYS: dict[str, Callable[[Lock], object]] = {
    "acquire(timeout=1)": lambda lock: lock.acquire(timeout=1),
    "acquire(blocking=False)": lambda lock: lock.acquire(blocking=False),
    "acquire()": lambda lock: lock.acquire(),
}
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_a_release_gets_by_a_nested_acquire(play: Play, *, late: bool) -> None:
    def test(scene: Scene) -> None:
        scene.threads.acquire()
        scene.threads.acquire()
        task = scene.stuck("count", scene.tasks.acquire, late=late)
        scene.promptly(scene.threads.release)
        assert scene.threads.hold_count == 1
        scene.come_late()
        assert task.result() is True, "the acquire is carried out when the loop turns"
        scene.until_count(2)
        scene.end()

    play(test)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@each_way
def test_a_nested_acquire_gets_by_a_nested_acquire(play: Play, way: str, *, late: bool) -> None:
    def test(scene: Scene) -> None:
        scene.threads.acquire()
        task = scene.stuck("count", scene.tasks.acquire, late=late)
        assert scene.promptly(lambda: WAYS[way](scene.threads)) is True
        assert scene.threads.hold_count == 2
        scene.come_late()
        assert task.result() is True
        scene.until_count(3)
        scene.end()

    play(test)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@each_way
def test_a_nested_acquire_gets_by_a_release(play: Play, way: str, *, late: bool) -> None:
    """The release is carried out exactly once, though its task does not go on."""

    def test(scene: Scene) -> None:
        scene.threads.acquire()
        scene.threads.acquire()
        task = scene.stuck("count", scene.tasks.release, late=late)
        assert scene.promptly(lambda: WAYS[way](scene.threads)) is True
        assert scene.threads.hold_count == 2
        scene.come_late()
        task.result()
        scene.until_count(2)
        scene.end()

    play(test)


def test_an_acquire_gets_by_the_last_release(play: Play) -> None:
    def test(scene: Scene) -> None:
        scene.threads.acquire()
        first = scene.threads.token
        task = scene.stuck("release", scene.tasks.release)
        assert scene.promptly(scene.threads.acquire) is True
        assert scene.threads.token != first, "that is another hold"
        task.result()
        scene.until_count(1)
        scene.end()

    play(test)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_a_nested_acquire_past_which_the_last_level_was_released_takes_the_lock_afresh(
    play: Play, *, late: bool
) -> None:
    def test(scene: Scene) -> None:
        scene.threads.acquire()
        task = scene.stuck("count", scene.tasks.acquire, late=late)
        scene.promptly(scene.threads.release)
        assert scene.promptly(scene.others.acquire) is True, "the lock is free meanwhile"
        scene.come_late()
        scene.others.release()
        assert task.result() is True
        scene.until_count(1)
        scene.end()

    play(test)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_an_acquire_gets_by_an_outermost_one_that_has_the_lock_and_does_not_know(play: Play, *, late: bool) -> None:
    def test(scene: Scene) -> None:
        task = scene.stuck("acquire", scene.tasks.acquire, late=late)
        assert scene.promptly(lambda: scene.threads.acquire(timeout=PROMPT_SECONDS)) is True
        scene.come_late()
        assert task.result() is True
        scene.until_count(2)
        scene.end()

    play(test)


def test_an_acquire_gets_by_one_that_waits_for_the_lock(play: Play) -> None:
    def test(scene: Scene) -> None:
        scene.others.acquire()
        actor = scene.rig._actor()
        task = scene.rig.start(lambda: actor.do(scene.tasks.acquire))
        scene.rig.until(lambda: scene.rig.is_queued(NAME), "the task waits")
        scene.block()
        waiting = scene.rig.start(lambda: scene.promptly(scene.threads.acquire))
        scene.rig._process.sleep(2.0)
        scene.others.release()
        assert waiting.result() is True
        assert task.result() is True
        scene.until_count(2)
        scene.end()

    play(test)


def test_who_is_in_line_behind_a_task_that_can_not_go_on_gets_by(play: Play) -> None:
    """The task is first in line when the caller inside leaves; it loses its place, and acts later."""

    def test(scene: Scene) -> None:
        scene.threads.acquire()
        scene.until_settled()
        faults = [line.hold_reply(calls(NAME, "count")) for line in scene.rig.lines]
        inside = scene.rig.start(scene.threads.acquire)
        scene.rig.until(lambda: all_struck(faults), "a thread is inside")
        actor = scene.rig._actor()
        task = scene.rig.start(lambda: actor.do(scene.tasks.acquire))
        scene.rig._process.sleep(0.1)
        scene.block()
        behind = scene.rig.start(lambda: scene.promptly(lambda: scene.threads.acquire(timeout=1)))
        scene.rig._process.sleep(0.1)
        release_all(faults)
        assert inside.result() is True
        assert behind.result() is True
        assert scene.threads.hold_count == 3
        assert task.result() is True
        scene.until_count(4)
        scene.end()

    play(test)


def test_a_loop_that_turns_is_not_overtaken(play: Play) -> None:
    """Calls may take any time, as long as the loop answers."""

    def test(scene: Scene) -> None:
        scene.others.acquire()
        actor = scene.rig._actor()
        task = scene.rig.start(lambda: actor.do(scene.tasks.acquire))
        scene.rig.until(lambda: scene.rig.is_queued(NAME), "the task waits")
        (waiter,) = scene.session.hubs.waiters()
        behind = scene.rig.start(scene.threads.acquire)
        scene.rig._process.sleep(10.0)
        assert scene.session.hubs.waiters() == [waiter], "the task keeps its place"
        scene.others.release()
        assert task.result() is True
        assert behind.result() is True
        scene.until_count(2)
        scene.end()

    play(test)


def test_a_task_that_is_cancelled_when_its_call_was_overtaken_takes_nothing(play: Play) -> None:
    def test(scene: Scene) -> None:
        scene.threads.acquire()
        actor = scene.rig._actor()
        task = scene.stuck("count", scene.tasks.acquire)
        actor.cancel()
        assert scene.promptly(lambda: scene.threads.acquire(timeout=1)) is True
        with pytest.raises(Interrupted):
            task.result()
        scene.until_count(2)
        scene.end()

    play(test)


def test_a_release_that_is_cancelled_when_it_was_overtaken_is_carried_out_once(play: Play) -> None:
    def test(scene: Scene) -> None:
        for _ in range(3):
            scene.threads.acquire()
        actor = scene.rig._actor()
        task = scene.stuck("count", scene.tasks.release)
        actor.cancel()
        scene.promptly(scene.threads.release)
        with pytest.raises(Interrupted):
            task.result()
        scene.until_count(1)
        scene.end()

    play(test)


def test_a_call_that_begins_anew_waits_until_it_was_undone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop turns when the janitor has claimed the call, and has not undone it yet."""

    def test(scene: Scene) -> None:
        interrupted = scene.session.interrupted_of_tasks
        take_back = interrupted._take_back

        def take_back_late(record: CallRecord, error: BaseException | None) -> None:
            monkeypatch.undo()
            scene.rig._process.sleep(STUCK_SECONDS)
            take_back(record, error)

        monkeypatch.setattr(interrupted, "_take_back", take_back_late)
        scene.threads.acquire()
        task = scene.stuck("count", scene.tasks.acquire)
        scene.threads.release()
        assert task.result() is True
        scene.until_count(1)
        scene.end()

    play(test)


@pytest.mark.parametrize("kind", [Listen, Park])
def test_a_call_that_is_overtaken_as_it_is_about_to_wait_leaves_no_waiter(play: Play, kind: type[Step]) -> None:
    """The loop stands still between two instructions, and then goes on after its call was undone."""

    def test(scene: Scene) -> None:
        process, handlers = scene.rig._process, next(iter(scene.session.foregrounds))._handlers
        handle, is_stuck = handlers[kind], []

        async def handle_late(effect: Step) -> Any:
            handlers[kind] = handle
            is_stuck.append(True)
            process.sleep(STUCK_SECONDS)
            return await handle(effect)

        handlers[kind] = handle_late
        scene.others.acquire()
        actor = scene.rig._actor()
        task = scene.rig.start(lambda: actor.do(scene.tasks.acquire))
        scene.rig.until(lambda: is_stuck, "the loop stands still")
        behind = scene.rig.start(lambda: scene.threads.acquire(timeout=STUCK_SECONDS / 2))
        process.sleep(2.0)
        scene.others.release()
        assert behind.result() is True
        assert task.result() is True
        scene.until_count(2)
        scene.end()
        assert scene.session.hubs.waiters() == []

    play(test)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_release_that_is_overtaken_before_it_has_asked_is_carried_out(play: Play, *, is_cancelled: bool) -> None:
    """Releases inside the gate may wait until other calls of their loop have their replies."""

    def test(scene: Scene) -> None:
        foreground: Any = next(iter(scene.session.foregrounds))
        actor, rooms = scene.rig._actor(), [foreground._room, foreground._line._room]
        for _ in range(2):
            scene.threads.acquire()
        scene.until_settled()
        faults = [line.hold_reply(calls(NAME, "count")) for line in scene.rig.lines]
        inside = scene.rig.start(scene.threads.acquire)
        scene.rig.until(lambda: all_struck(faults), "a thread is inside")
        task = scene.rig.start(lambda: actor.do(scene.tasks.release))
        scene.rig._process.sleep(0.1)
        foreground._room = foreground._line._room = int
        release_all(faults)
        assert inside.result() is True
        scene.rig._process.sleep(0.1)
        scene.block()
        assert scene.promptly(lambda: scene.threads.acquire(timeout=1)) is True
        foreground._room, foreground._line._room = rooms
        if is_cancelled:
            actor.cancel()
            with pytest.raises(Interrupted):
                task.result()
        else:
            actor._loop.call_soon_threadsafe(foreground._line.make_room)
            task.result()
        scene.until_count(3)
        scene.end()

    play(test)


@each_way
def test_who_is_behind_tasks_of_several_loops_that_stand_still_gets_by(play: Play, way: str) -> None:
    def test(scene: Scene) -> None:
        scene.threads.acquire()
        tasks = [scene.stuck("count", scene.tasks.acquire)]
        for _ in range(2):
            tasks.append(scene.rig.start(lambda: scene.rig._actor().do(scene.tasks.acquire)))
            scene.rig._process.sleep(0.1)
        for actor in scene.rig._actors.values():
            actor._loop.call_soon_threadsafe(scene.rig._process.sleep, STUCK_SECONDS)
        assert scene.promptly(lambda: WAYS[way](scene.threads)) is True
        assert scene.threads.hold_count == 2
        assert [task.result() for task in tasks] == [True] * 3
        scene.until_count(5)
        scene.end()

    play(test)


def test_a_loop_that_stands_still_delays_no_thread_and_no_other_loop(play: Play) -> None:
    """Messages come at once, and not only with a later look."""

    def test(scene: Scene) -> None:
        rig, clients, taken = scene.rig, scene.made, dict[str, float]()
        holder = rig.client()._client
        held = {name: holder.lock(name) for name in ("stuck", "thread", "loop")}

        def take(name: str) -> None:
            with clients._client.lock(name):
                taken[name] = rig.clock()

        async def take_in_a_task(name: str) -> None:
            async with clients._async.lock(name):
                taken[name] = rig.clock()

        for lock in held.values():
            lock.acquire()
        actor = rig._actor()
        waiting = [
            rig.start(lambda: actor.do(lambda: take_in_a_task("stuck"))),
            rig.start(lambda: take("thread")),
            rig.start(lambda: rig._actor().do(lambda: take_in_a_task("loop"))),
        ]
        rig.until(lambda: all(map(rig.is_queued, held)), "all wait")
        released_at = rig.clock()
        scene.block()
        for lock in held.values():
            lock.release()
        for one in waiting:
            one.result()
        assert taken["stuck"] - released_at >= STUCK_SECONDS
        assert taken["thread"] - released_at < MESSAGE_SECONDS
        assert taken["loop"] - released_at < MESSAGE_SECONDS

    play(test)
