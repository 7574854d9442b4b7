"""An event loop that stands still in a call for several locks: the call is undone, or carried out, as a whole.

`contract.test_stuck_loops` has the same for one lock. A caller with the ``owner=`` of the task gets by at the gate of
one of the locks, and the task's calls for the others are undone with that one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("hiredis")

from contract.rigs.aio_virtual import AioVirtualRig
from contract.rigs.rig import Interrupted
from contract.test_stuck_loops import NAME, OWNER, PROMPT_SECONDS, STUCK_SECONDS, Scene
from relock import ClientClosedError
from relock._runtime.session import closing

OTHER = "b"
BOTH = (NAME, OTHER)


class SceneOfTwo(Scene):
    """A scene with two locks; requests for the first one are held up."""

    def __init__(self, rig: AioVirtualRig) -> None:
        super().__init__(rig)
        self.both = self.made._client.lock_all(BOTH, owner=OWNER)
        self.both_of_task = self.made._async.lock_all(BOTH, owner=OWNER)
        self.second = self.made._client.lock(OTHER, owner=OWNER)
        self.others_second = rig.client()._client.lock(OTHER)

    def levels(self) -> tuple[int, int]:
        return self.threads.hold_count, self.second.hold_count

    def until_levels(self, first: int, second: int) -> None:
        """Wait until the owner has these levels, here and on the masters, and no call is at a gate."""
        self.rig.until(lambda: self.levels() == (first, second), f"{first} and {second} levels here")
        for name, count in zip(BOTH, (first, second), strict=True):
            self.rig.until(lambda name=name, count=count: self.rig.agree_on(name, count), f"{count} of {name}")  # type: ignore[misc]
        self.rig.until(lambda: not self.session.gates._gates, "no call is at a gate")
        assert not self.session.several

    def end(self) -> None:
        """Release all levels, and check that no master has anything left."""
        for lock in (self.threads, self.second):
            while lock.owned():
                lock.release()
            self.rig.until_free(lock.name, "all")


Play = Callable[[Callable[[SceneOfTwo], None]], None]


@pytest.fixture(params=[1, 3], ids=["one master", "three masters"])
def play(request: pytest.FixtureRequest, seed: int) -> Iterator[Play]:
    rig = AioVirtualRig(request.param, seed)
    yield lambda test: rig.play(lambda: test(SceneOfTwo(rig)))
    rig.close()


each_time = pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])


@each_time
@pytest.mark.parametrize("through", ["both", "the second one"])
def test_a_nested_acquire_is_undone_as_a_whole_and_made_again(play: Play, through: str, *, late: bool) -> None:
    def test(scene: SceneOfTwo) -> None:
        scene.both.acquire()
        task = scene.stuck("count", scene.both_of_task.acquire, late=late)
        lock: Any = scene.both if through == "both" else scene.second
        assert scene.promptly(lambda: lock.acquire(blocking=False)) is True
        assert scene.levels() == ((2, 2) if through == "both" else (1, 2))
        scene.come_late()
        assert task.result() is True
        scene.until_levels(*((3, 3) if through == "both" else (2, 3)))
        scene.end()

    play(test)


@each_time
def test_an_outermost_acquire_is_undone_as_a_whole_and_made_again(play: Play, *, late: bool) -> None:
    def test(scene: SceneOfTwo) -> None:
        task = scene.stuck("acquire", scene.both_of_task.acquire, late=late)
        assert scene.promptly(lambda: scene.second.acquire(timeout=PROMPT_SECONDS)) is True
        assert scene.levels() == (0, 1)
        scene.come_late()
        assert task.result() is True
        scene.until_levels(1, 2)
        scene.end()

    play(test)


@each_time
def test_a_nested_release_is_carried_out_once_for_each(play: Play, *, late: bool) -> None:
    def test(scene: SceneOfTwo) -> None:
        scene.both.acquire()
        scene.both.acquire()
        task = scene.stuck("count", scene.both_of_task.release, late=late)
        assert scene.promptly(lambda: scene.second.acquire(timeout=1)) is True
        assert scene.levels() == (1, 2)
        scene.come_late()
        task.result()
        scene.until_levels(1, 2)
        scene.end()

    play(test)


def test_a_last_release_is_carried_out_for_each(play: Play) -> None:
    def test(scene: SceneOfTwo) -> None:
        scene.both.acquire()
        task = scene.stuck("release", scene.both_of_task.release)
        assert scene.promptly(scene.second.acquire) is True
        assert scene.promptly(scene.others.acquire) is True, "the first one is free"
        task.result()
        scene.others.release()
        scene.until_levels(0, 1)
        scene.end()

    play(test)


def test_a_wait_for_one_gives_back_the_others_and_begins_anew(play: Play) -> None:
    def test(scene: SceneOfTwo) -> None:
        scene.others_second.acquire()
        actor = scene.rig._actor()
        task = scene.rig.start(lambda: actor.do(scene.both_of_task.acquire))
        scene.rig.until(lambda: scene.rig.is_queued(OTHER), "the task waits, and has the first one")
        assert scene.levels() == (1, 0)
        scene.block()
        waiting = scene.rig.start(lambda: scene.second.acquire(timeout=8))
        assert scene.promptly(lambda: scene.others.acquire(timeout=PROMPT_SECONDS)) is True, "it has given that back"
        scene.others.release()
        scene.others_second.release()
        assert waiting.result() is True
        assert task.result() is True
        scene.until_levels(1, 2)
        scene.end()

    play(test)


def test_a_close_gives_back_what_a_call_has_whose_loop_stands_still(play: Play) -> None:
    def test(scene: SceneOfTwo) -> None:
        scene.others_second.acquire()
        actor = scene.rig._actor()
        task = scene.rig.start(lambda: actor.do(scene.both_of_task.acquire))
        scene.rig.until(lambda: scene.rig.is_queued(OTHER), "the task waits, and has the first one")
        scene.block()
        begin = scene.rig.clock()
        closing.close(scene.session)
        assert scene.rig.clock() - begin < STUCK_SECONDS
        assert scene.rig.is_free(NAME)
        with pytest.raises(ClientClosedError):
            task.result()
        scene.others_second.release()
        scene.rig.until_free(OTHER, "the close")
        assert scene.others.acquire() is True

    play(test)


def test_a_task_that_is_cancelled_when_its_call_was_overtaken_takes_nothing(play: Play) -> None:
    def test(scene: SceneOfTwo) -> None:
        scene.both.acquire()
        actor = scene.rig._actor()
        task = scene.stuck("count", scene.both_of_task.acquire)
        actor.cancel()
        assert scene.promptly(lambda: scene.second.acquire(timeout=1)) is True
        with pytest.raises(Interrupted):
            task.result()
        scene.until_levels(1, 2)
        scene.end()

    play(test)


def test_a_release_that_is_cancelled_when_it_was_overtaken_is_carried_out_once(play: Play) -> None:
    def test(scene: SceneOfTwo) -> None:
        for _ in range(3):
            scene.both.acquire()
        actor = scene.rig._actor()
        task = scene.stuck("count", scene.both_of_task.release)
        actor.cancel()
        scene.promptly(scene.second.release)
        with pytest.raises(Interrupted):
            task.result()
        scene.until_levels(2, 1)
        scene.end()

    play(test)
