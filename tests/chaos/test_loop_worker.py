"""Workers that are tasks: their loop ends and begins again under them, and the checker judges their history."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Server
from support.until import until

from chaos.checker import check, check_told
from chaos.deadlocks import false_alarms
from chaos.history import Reader, grants
from chaos.latches import wrong_passages
from chaos.loop_worker import LoopProcess, TaskTurns
from chaos.permits import too_many
from chaos.readers import beside_writers
from chaos.resource import Store
from chaos.turns import is_about, run_here
from chaos.worker import Job
from relock import LockLostError

SOON = 60.0  # seconds; bounds a failure


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture(params=[{}])
def process(server: Server, store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LoopProcess]:
    made = LoopProcess(
        Job(
            process=1,
            threads=3,
            seed="a seed",
            urls=[server.url],
            ttl=1.5,
            guard=0.0,
            node_timeout=0.5,
            locks=["a", "b"],
            folder=str(tmp_path),
            store=str(store.path),
            crowd=1.0,
            think=0.002,
            long=0.0,
            tries=0.15,
            has_loop=True,
            **request.param,
        )
    )
    yield made
    asyncio.run(made.client.close())


def entered(store: Store) -> int:
    return sum(store.entries.values())


@pytest.mark.parametrize(
    "process",
    [{}, {"several": 0.5}, {"limit": 2}, {"reads": 0.5}, {"crossed": 0.5}, {"parties": 2}],
    indirect=True,
    ids=["one lock", "some take two locks", "permits", "readers", "deadlocks", "latches"],
)
def test_tasks_go_on_after_their_loop_has_ended_and_all_they_did_is_in_order(
    process: LoopProcess, store: Store, tmp_path: Path
) -> None:
    (thread,) = process.start()
    for _ in range(3):
        before = entered(store)
        until(lambda: entered(store) > before + 5, within=SOON, what="tasks have had locks")  # noqa: B023
        loop = process._loop
        process.obey("end loop")
        until(lambda: process._loop is not loop, within=SOON, what="the next loop runs")  # noqa: B023
    before = entered(store)
    until(lambda: entered(store) > before + 5, within=SOON, what="tasks of the last loop have had locks")
    process.stopping.set()
    thread.join(SOON)
    assert not thread.is_alive()
    process.recorder.write("ended", at=0.0)
    reader = Reader()
    history = reader.read(tmp_path)
    assert len(grants(history.operations)) > 20
    assert (check(history), check_told(history), reader.errors) == ([], [], [])
    if process.job.limit:
        assert too_many(history.operations, process.job.limit) == []
    assert beside_writers(history.operations) == []
    assert list(false_alarms(history.operations)) == []
    assert wrong_passages(history.latches, process.job.parties, [], stall=SOON) == []


def test_a_task_that_is_cancelled_takes_its_next_turn(process: LoopProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    async def play() -> None:
        worker = TaskTurns(process, 0)
        never = asyncio.Event()

        async def wait(call: object) -> None:
            turns.append("waits")
            asyncio.get_running_loop().call_soon(worker._strike)
            await never.wait()

        worker._result = wait  # type: ignore[method-assign]
        for _ in range(2):
            await worker.turn()
        assert (task := asyncio.current_task())
        assert task.cancelling() == 0
        worker._store.close()

    class Lock:
        name = "a"

        def acquire(self, **_: object) -> None:
            pass

    monkeypatch.setattr(process.client, "lock", lambda _: Lock())
    asyncio.run(play())
    assert turns == ["waits", "waits"]


def test_a_loop_stands_still_only_with_a_lock_that_was_asked_for_after_the_order(
    process: LoopProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    now = 10.0
    monkeypatch.setattr("chaos.loop_worker.clock", lambda: now)
    monkeypatch.setattr("chaos.loop_worker.time.sleep", slept.append)
    process.obey({"stand": 1.5, "inside": True})
    process.stand_still_inside(called=9.9)
    assert slept == []
    process.stand_still_inside(called=10.1)
    process.stand_still_inside(called=10.2)
    assert slept == [1.5]


def test_the_turns_of_a_thread_never_suspend() -> None:
    async def suspends() -> None:
        await asyncio.sleep(0)

    async def does_not() -> None:
        pass

    run_here(does_not())
    with pytest.raises(AssertionError, match="waits for a loop"):
        run_here(suspends())


def test_a_release_of_several_locks_says_which_were_lost() -> None:
    error = LockLostError("lost", lock="a", token=1, reason="forgotten")
    error.add_note("relock: 'b' was lost")
    assert [name for name in ("a", "b", "c") if is_about(error, name)] == ["a", "b"]
