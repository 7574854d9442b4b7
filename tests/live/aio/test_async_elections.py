"""Elections of tasks whose loop runs no more, or stands still: a leader's hold lives with the task of its campaign."""

import asyncio
import queue
import re
import threading
from typing import Any

import pytest
from support.masters import Deployment
from support.tasks import NODE_TIMEOUT, SOON, Connect, until
from support.urls import options_for

from relock import AsyncClient, AsyncTerm, Client, LockLostError, LoopStalled, Loss, LossCode
from relock._owner import described

pytestmark = pytest.mark.every_quorum

TTL = 4.5  # seconds: long enough for a machine that stands still for three


def test_a_leader_whose_loop_is_closed_is_followed(server: Deployment, name: str) -> None:
    """The leader's function waits for the end of its term, in a task that is kept alive, though it never runs again."""
    losses: queue.SimpleQueue[Loss] = queue.SimpleQueue()
    client, loop = AsyncClient(server.url, **options_for(server.url, {"ttl": TTL})), asyncio.new_event_loop()
    terms: list[AsyncTerm] = []

    async def lead(term: AsyncTerm) -> None:
        terms.append(term)
        await term.lost.wait()

    campaign = client.elect(name, lead, on_lost=losses.put)
    task = loop.create_task(campaign)
    loop.run_until_complete(until(lambda: terms, "the task leads"))
    loop.close()
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as others:
        assert others.lock(name).acquire(timeout=SOON)
        others.lock(name).release()
    assert losses.get(timeout=SOON).code == LossCode.OWNER_ENDED
    assert terms[0].lost.is_set()
    with pytest.raises(RuntimeError, match="no event loop of asyncio runs"):
        campaign.close()
    asyncio.run(client.close())
    task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_leader_whose_loop_stands_still_for_longer_than_the_limit_is_followed(
    connect: Connect, server: Deployment, name: str
) -> None:
    losses: queue.SimpleQueue[Loss] = queue.SimpleQueue()
    events: list[Any] = []
    client = connect(server.url, ttl=TTL, stall_limit=0.1, on_event=events.append)
    other, stop = connect(server.url), asyncio.Event()

    async def follow() -> None:
        async with other.lock(name):
            pass

    async def lead(term: AsyncTerm) -> None:
        stop.set()
        thread = threading.Thread(target=lambda: asyncio.run(follow()), daemon=True)
        thread.start()
        thread.join(SOON)
        assert not thread.is_alive(), "another client takes the lock while this loop stands still"
        with pytest.raises(LockLostError, match="its event loop stands still"):
            await term.ensure()

    await client.elect(name, lead, stop=stop, on_lost=losses.put)
    await until(lambda: not losses.empty(), "the loss is told")
    assert losses.get().code == LossCode.STALLED
    await until(lambda: any(isinstance(event, LoopStalled) for event in events), "the cause is told")


async def test_any_task_or_loop_uses_the_term_and_people_see_a_leader(
    client: AsyncClient, server: Deployment, name: str
) -> None:
    async def lead(term: AsyncTerm) -> None:
        assert await asyncio.create_task(term.ensure()) == term.token
        assert await asyncio.to_thread(lambda: asyncio.run(term.ensure())) == term.token
        assert re.search(r"owner='leader-\d+'$", described(str((await client.info(name)).owner)))
        await asyncio.create_task(term.resign())
        assert term.lost.is_set()
        stop.set()

    stop = asyncio.Event()
    await client.elect(name, lead, stop=stop)
