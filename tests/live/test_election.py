"""Elections: one process leads at a time, until its function returns, it is lost, or it ends."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.masters import Deployment
from support.servers import Server, die_with_parent
from support.tasks import until as until_in_loop
from support.until import until
from support.urls import options_for

from relock import AsyncClient, AsyncTerm, Client, LockLostError, NotOwnedError, QuorumError, Term

WITHIN = 60.0

pytestmark = pytest.mark.every_quorum
LEADER = """
import sys
from relock import Client

def lead(term):
    print(term.token, flush=True)
    sys.stdin.readline()

Client(sys.argv[1:], ttl=1.5).elect("leader", lead)
"""


class Campaign:
    """Campaign in a thread of its own, whose function waits for what the test says."""

    def __init__(self, client: Client, name: str, **options: Any) -> None:
        self.terms: list[Term] = []
        self.go_on = threading.Semaphore(0)
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.during: Callable[[Term], object] = lambda _term: None  # what the function does before it returns
        self.thread = threading.Thread(target=self._campaign, args=(client, name), kwargs=options)
        self.thread.start()

    def lead(self, term: Term) -> None:
        self.terms.append(term)
        assert self.go_on.acquire(timeout=WITHIN)
        self.during(term)

    def _campaign(self, client: Client, name: str, **options: Any) -> None:
        try:
            client.elect(name, self.lead, stop=self.stop, **options)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.go_on.release(1000)
        self.thread.join()


@pytest.fixture
def campaign(client: Client, name: str) -> Any:
    """Start campaigns, and stop them at the end of the test."""
    started: list[Campaign] = []

    def start(**options: Any) -> Campaign:
        started.append(Campaign(options.pop("client", client), name, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_one_leads_at_a_time_and_the_next_one_when_its_function_has_returned(
    campaign: Callable[..., Campaign], client: Client, name: str
) -> None:
    both = [campaign(), campaign()]
    until(lambda: any(one.terms for one in both), within=WITHIN, what="one leads")
    first, second = sorted(both, key=lambda one: not one.terms)
    assert (len(first.terms), len(second.terms)) == (1, 0)
    first.stop.set()
    first.go_on.release()
    until(lambda: second.terms, within=WITHIN, what="the other one leads")
    first.thread.join()
    assert second.terms[0].token > first.terms[0].token
    assert (first.terms[0].remaining(), first.error) == (0.0, None)
    assert second.terms[0].ensure(1.0) == second.terms[0].token
    second.end()
    until(lambda: not client.info(name).held, within=WITHIN, what="nobody leads")


def test_a_leader_leads_again_after_a_loss_and_is_told(
    campaign: Callable[..., Campaign], client: Client, name: str
) -> None:
    losses: list[Any] = []
    one = campaign(on_lost=losses.append, ttl=6.0, note="leads")
    until(lambda: one.terms, within=WITHIN, what="it leads")
    assert client.info(name).note == "leads"
    assert client.force_release(name)
    assert one.terms[0].lost.wait(WITHIN)
    with pytest.raises(LockLostError):
        one.terms[0].ensure()
    one.go_on.release()
    until(lambda: len(one.terms) == 2, within=WITHIN, what="it leads again")
    assert losses[0].token == one.terms[0].token < one.terms[1].token


def test_an_error_of_the_function_gives_the_leadership_up_and_leaves_the_election(
    campaign: Callable[..., Campaign], client: Client, name: str
) -> None:
    one = campaign()
    failure = ValueError("wrong")

    def fail(_term: Term) -> None:
        raise failure

    one.during = fail
    one.go_on.release()
    one.thread.join()
    assert one.error is failure
    until(lambda: not client.info(name).held, within=WITHIN, what="nobody leads")


def test_the_loss_of_another_lock_is_an_error_of_the_function(
    campaign: Callable[..., Campaign], client: Client, name: str
) -> None:
    one = campaign()

    def lose_another(_term: Term) -> None:
        with client.lock(f"{name} another"):
            client.force_release(f"{name} another")

    one.during = lose_another
    one.go_on.release()
    one.thread.join()
    assert isinstance(one.error, LockLostError)


@pytest.mark.parametrize("how", ["resigns", "asks for too much"])
def test_the_end_of_its_term_inside_the_function_is_no_error(campaign: Callable[..., Campaign], how: str) -> None:
    one = campaign()

    def end(term: Term) -> None:
        if how == "resigns":
            term.resign()
            term.resign()
            assert term.lost.is_set()
            with pytest.raises(NotOwnedError):
                term.ensure()
        else:
            term.ensure(1e6)

    one.during = end
    one.go_on.release()
    until(lambda: len(one.terms) == 2, within=WITHIN, what="it leads again")
    assert one.error is None


def test_a_candidate_that_waits_stops(campaign: Callable[..., Campaign], client: Client, name: str) -> None:
    leader = campaign()
    until(lambda: leader.terms, within=WITHIN, what="one leads")
    candidate = campaign()
    until(lambda: client.info(name).queue, within=WITHIN, what="the other one waits")
    candidate.stop.set()
    candidate.thread.join(WITHIN)
    assert not candidate.thread.is_alive()
    assert candidate.terms == []


def test_a_dead_leader_is_followed(server: Deployment, connect: Callable[..., Client]) -> None:
    """The figure of the promise is the ttl and a second; this test does not measure the machine's speed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    leader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            LEADER,
            *(str(url) for url in ([server.url] if isinstance(server.url, str) else server.url)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    with leader:
        assert leader.stdout is not None
        token = int(leader.stdout.readline())
        one = Campaign(connect(server.url, ttl=1.5), "leader")
        leader.kill()
        until(lambda: one.terms, within=WITHIN, what="the other one leads")
        one.end()
    assert one.terms[0].token > token


def answers(client: Client) -> bool:
    """Return whether enough masters answer within the node timeout of a client, which is brief here."""
    try:
        client.lock("any").locked()
    except QuorumError:
        return False
    return True


def test_the_campaign_outlives_an_outage(
    start_server: Callable[..., Server], connect: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    client = connect(server.url, ttl=1.5)
    until(lambda: answers(client), within=WITHIN, what="there are connections")
    server.kill()
    one = Campaign(client, "leader")
    until(lambda: "goes on, though too few masters answer" in caplog.text, within=WITHIN, what="it is logged")
    server.start()
    until(lambda: one.terms, within=WITHIN, what="it leads")
    one.end()
    assert one.error is None


async def test_tasks_elect_a_leader_too(server: Deployment, name: str) -> None:
    tokens: list[int] = []
    turns: asyncio.Queue[str] = asyncio.Queue()

    async def lead(term: AsyncTerm) -> None:
        tokens.append(await term.ensure())
        assert (await client.info(name)).note == "leads"
        while True:
            turn = await turns.get()
            if turn == "return":
                return
            if turn == "resign":
                await term.resign()
                assert term.lost.is_set()
                assert term.remaining() == 0.0
            elif turn == "lose":
                await term.ensure(1e6)
            elif turn == "fail":
                raise ValueError(turn)

    async with AsyncClient(server.url, **options_for(server.url, {"node_timeout": 5.0})) as client:
        campaign = asyncio.ensure_future(client.elect(name, lead, note="leads"))
        for turn in ("return", "lose", "resign"):
            turns.put_nowait(turn)
            if turn == "resign":
                turns.put_nowait("return")
        turns.put_nowait("fail")
        with pytest.raises(ValueError, match="fail"):
            await campaign
        assert len(tokens) == 4
        assert sorted(set(tokens)) == tokens
        assert not (await client.info(name)).held


async def test_a_loss_cancels_the_function_of_a_task_and_cancelling_ends_the_campaign(
    server: Deployment, name: str
) -> None:
    seen: list[str] = []
    leads = asyncio.Event()

    async def lead(_term: AsyncTerm) -> None:
        leads.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def lost(loss: Any) -> None:
        seen.append(loss.lock)

    async with AsyncClient(server.url, **options_for(server.url, {"ttl": 4.5})) as client:
        campaign = asyncio.ensure_future(client.elect(name, lead, on_lost=lost))
        async with asyncio.timeout(WITHIN):
            await leads.wait()
            leads.clear()
            assert await client.force_release(name)
            await leads.wait()
            await until_in_loop(lambda: set(seen) == {"cancelled", name}, "the callback, a task of its own, is called")
        campaign.cancel()
        with pytest.raises(asyncio.CancelledError):
            await campaign
        assert not (await client.info(name)).held
