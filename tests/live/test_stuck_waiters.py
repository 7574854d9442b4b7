"""A waiter whose process lives, but that cannot go on: its turn passes to the next one, and it comes back later.

Nothing lets that waiter go on before the next one has had the lock. So if its turn did not pass, each test would last
for a minute.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from attrs import define, field
from support.masters import Deployment
from support.until import until

from relock import AsyncClient, Client

Connect = Callable[..., Client]

LONG = 60.0
STUCK_SECONDS_MAX = 30.0  # 3 s to look and a heartbeat of 2.5 s, on a machine that is busy with other work


@define
class Scene:
    """A held lock, a victim that waits for it and gets stuck, and a waiter behind the victim.

    Attributes:
        stuck: the victim is queued, and does nothing any more.
        served: the waiter behind the victim has the lock.
    """

    others: Client
    name: str
    stuck: threading.Event = field(factory=threading.Event)
    served: threading.Event = field(factory=threading.Event)

    def is_queued(self, count: int = 1) -> bool:
        return len(self.others.info(self.name).queue) == count

    def get_stuck(self) -> None:
        """Stand still, as the victim does once it is queued."""
        until(self.is_queued, within=LONG, what="the victim is queued")
        self.stuck.set()
        assert self.served.wait(LONG), "the next one got the lock only when the victim went on"

    def play(self) -> None:
        """Play all clients but the victim."""
        holder, behind = self.others.lock(self.name, owner="holder"), self.others.lock(self.name, owner="behind")
        assert self.stuck.wait(LONG)
        waiting = threading.Thread(target=behind.acquire)
        waiting.start()
        until(lambda: self.is_queued(2), within=LONG, what="another waiter is behind the victim")
        holder.release()
        waiting.join(STUCK_SECONDS_MAX)
        if not waiting.is_alive():
            until(lambda: self.is_queued(0), within=LONG, what="the victim's place is given up")
            self.served.set()
            until(self.is_queued, within=LONG, what="the victim is back")
            behind.release()


@pytest.fixture
def scene(connect: Connect, server: Deployment, name: str) -> Iterator[Scene]:
    others = connect(server.url)
    assert others.lock(name, owner="holder").acquire()
    scene = Scene(others, name)
    yield scene
    assert scene.served.is_set()
    until(lambda: not others.info(name).held, within=LONG, what="the victim has had its turn")
    until(lambda: scene.is_queued(0), within=LONG, what="a place that a heartbeat has put back is given up")


async def wait(client: AsyncClient, name: str) -> None:
    async with client.lock(name, timeout=2 * LONG):
        pass


def test_a_task_whose_event_loop_is_blocked(scene: Scene, server: Deployment) -> None:
    async def victim() -> None:
        async with AsyncClient(server.url) as client:
            waiting = asyncio.create_task(wait(client, scene.name))
            while not await asyncio.to_thread(scene.is_queued):
                await asyncio.sleep(0.01)
            scene.get_stuck()
            await waiting

    loop = threading.Thread(target=lambda: asyncio.run(victim()))
    loop.start()
    scene.play()
    loop.join(LONG)
    assert not loop.is_alive()


def test_a_task_whose_event_loop_is_stopped_and_not_closed(scene: Scene, server: Deployment) -> None:
    def victim() -> None:
        loop, client = asyncio.new_event_loop(), AsyncClient(server.url)
        waiting = loop.create_task(wait(client, scene.name))
        while not scene.is_queued():
            loop.run_until_complete(asyncio.sleep(0.01))
        scene.get_stuck()
        loop.run_until_complete(waiting)
        loop.run_until_complete(client.close())
        loop.close()

    thread = threading.Thread(target=victim)
    thread.start()
    scene.play()
    thread.join(LONG)
    assert not thread.is_alive()


def test_a_task_whose_event_loop_was_closed_leaves_though_nobody_tells_it_anything(
    connect: Connect, server: Deployment, name: str
) -> None:
    others = connect(server.url)
    assert others.lock(name).acquire()
    loop, client = asyncio.new_event_loop(), AsyncClient(connect(server.url))
    waiting = loop.create_task(wait(client, name))
    while len(others.info(name).queue) != 1:
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    until(lambda: not others.info(name).queue, within=LONG, what="the victim's place is given up")
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    waiting.get_coro().close()
    others.lock(name).release()


def test_a_thread_whose_signal_handler_takes_long(scene: Scene, connect: Connect, server: Deployment) -> None:
    def strike() -> None:
        until(scene.is_queued, within=LONG, what="the victim is queued")
        os.kill(os.getpid(), signal.SIGUSR1)
        scene.play()

    before = signal.signal(signal.SIGUSR1, lambda *_: scene.get_stuck())
    beside = threading.Thread(target=strike)
    try:
        beside.start()
        with connect(server.url).lock(scene.name, timeout=2 * LONG):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    beside.join(LONG)
    assert not beside.is_alive()
