"""An event loop that stands still in a call for a permit delays nobody for long, and its call goes on afterwards.

`contract.test_stuck_loops` has the same for one lock. Here no caller waits at a gate, because each permit has its own.
"""

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("hiredis")

from support.proxy import Line

from contract.rigs.aio_virtual import AioVirtualRig
from contract.rigs.rig import SOON, Running, all_struck, calls, release_all
from relock import AsyncPermit, Permit
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.lock_spec import HANDED_LEASE_SECONDS

STUCK_SECONDS = 12.0
PROMPT_SECONDS = 4.0  # two looks, and the time of the masters
TURN_LOST_SECONDS = 2 * HANDED_LEASE_SECONDS + HEARTBEAT_SECONDS  # a lease ends, a heartbeat shows it, a turn passes
NAME = "a"


class Scene:
    """A semaphore with two permits, threads, and a task whose loop can stand still."""

    def __init__(self, rig: AioVirtualRig) -> None:
        self.rig = rig
        made = rig.client()
        self.session = made._client._session
        self.threads = made._client.semaphore(NAME, 2)
        self.tasks = made._async.semaphore(NAME, 2)
        self.others = rig.client()._client.semaphore(NAME, 2)
        rig.warm_up(made, "permits")

    def take(self, permits: int) -> list[Permit]:
        """Take so many permits for a thread of the same client."""
        taken = [self.threads.acquire(timeout=SOON) for _ in range(permits)]
        assert None not in taken
        return [permit for permit in taken if permit is not None]

    def block(self) -> None:
        """Let the loop stand still from its next turn on."""
        process = self.rig._process
        self.rig._actor()._loop.call_soon_threadsafe(process.sleep, STUCK_SECONDS)
        process.sleep(0.001)

    def start(self) -> Running:
        """Let the task take a permit beside the test."""
        actor = self.rig._actor()
        return self.rig.start(lambda: actor.do(self.tasks.acquire))

    def end(self, task: Running) -> None:
        """Let the task release what it has got, and check that nothing is left."""
        permit = task.result()
        assert isinstance(permit, AsyncPermit)
        assert self.rig._actor().see(permit.owned)
        self.rig._actor().do(permit.release)
        self.rig.until_free(NAME, "all")
        assert self.session.holds.all() == []


Play = Callable[[Callable[[Scene], None]], None]


@pytest.fixture(params=[1, 3], ids=["one master", "three masters"])
def play(request: pytest.FixtureRequest, seed: int) -> Iterator[Play]:
    rig = AioVirtualRig(request.param, seed)
    yield lambda test: rig.play(lambda: test(Scene(rig)))
    rig.close()


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_the_other_permit_is_had_at_once_while_a_loop_stands_still_in_an_acquire(play: Play, *, late: bool) -> None:
    def test(scene: Scene) -> None:
        hold = Line.hold_request if late else Line.hold_reply
        faults = [hold(line, calls(NAME, "permit_acquire")) for line in scene.rig.lines]
        task = scene.start()
        scene.rig.until(lambda: all_struck(faults), "every master has got the request")
        scene.block()
        if not late:
            release_all(faults)
        begin = scene.rig.clock()
        for semaphore in (scene.threads, scene.others):
            permit = semaphore.acquire(timeout=PROMPT_SECONDS)
            assert permit is not None
            permit.release()
        assert scene.rig.clock() - begin < PROMPT_SECONDS
        release_all(faults)
        scene.end(task)

    play(test)


def test_a_turn_of_a_task_whose_loop_stands_still_passes_to_the_next_one(play: Play) -> None:
    def test(scene: Scene) -> None:
        first, second = scene.take(2)
        task = scene.start()
        scene.rig.until(lambda: scene.rig.queues_are(NAME, 1), "the task waits")
        behind = scene.rig.start(lambda: scene.others.acquire(timeout=SOON))
        scene.rig.until(lambda: scene.rig.queues_are(NAME, 2), "and another caller behind it")
        scene.block()
        begin = scene.rig.clock()
        first.release()
        permit = behind.result()
        assert permit is not None
        assert scene.rig.clock() - begin < TURN_LOST_SECONDS + scene.rig.slack
        permit.release()
        second.release()
        scene.end(task)

    play(test)
