"""The end of a process whose client was not closed: calls that were under way are finished before."""

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import redis
from support.masters import Deployment
from support.spawn import spawn
from support.until import until

pytestmark = pytest.mark.every_quorum

ENDS_WITHIN_SECONDS = 60

TASKS_THAT_TAKE_TURNS = """
    client = relock.AsyncClient(urls)

    async def take():
        while True:
            async with client.lock("a"):
                await asyncio.sleep(0)

    async def main():
        tasks = [asyncio.create_task(take()) for _ in range(10)]
        while not client.statistics().waiting:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)

    asyncio.run(main())
"""
TASKS_THAT_TAKE_PERMITS = TASKS_THAT_TAKE_TURNS.replace('client.lock("a")', 'client.semaphore("a", 2)')
TASKS_THAT_ARE_LEFT_AT_ONCE = """
    client = relock.AsyncClient(urls)

    async def take(number):
        async with client.lock(f"a{number}"):
            await asyncio.sleep(3600)

    async def main():
        async with client.lock("warm"):
            pass
        tasks.extend(asyncio.create_task(take(number)) for number in range(20))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    tasks = []
    LOOP
"""
A_RELEASE_THAT_A_MINORITY_DOES_NOT_KNOW = """
    client = relock.AsyncClient(urls)

    async def main():
        async with client.lock("a"):
            for url in urls[count // 2 + 1:]:
                redis.Redis.from_url(url).script_flush()

    asyncio.run(main())
"""
THREADS_THAT_WAIT = """
    client = relock.Client(urls)

    def take():
        while True:
            with client.lock("a"):
                pass

    for _ in range(5):
        threading.Thread(target=take, daemon=True).start()
    while not client.statistics().waiting:
        time.sleep(0.01)
"""
THREADS_THAT_WAIT_FOR_PERMITS = THREADS_THAT_WAIT.replace('client.lock("a")', 'client.semaphore("a", 2)')
A_THREAD_THAT_WAITS_FOR_ONE_OF_SEVERAL = """
    client, other = relock.Client(urls), relock.Client(urls)
    other.lock("b").acquire()
    threading.Thread(target=client.lock_all(["a", "b", "c"]).acquire, daemon=True).start()
    while not (other.info("b").queue and client.statistics().waits):
        time.sleep(0.01)
    time.sleep(0.1)
"""
LAST_DEEDS = "import atexit\nlast_deeds = []\natexit.register(lambda: [deed() for deed in last_deeds])\n"
A_LAST_DEED_THAT_LOCKS = """
    client = relock.Client(urls)

    def deed():
        with client.lock("a"):
            print("did it under the lock", file=sys.stderr)

    with client.lock("a"):
        last_deeds.append(deed)
"""
BY_RUN = TASKS_THAT_ARE_LEFT_AT_ONCE.replace("LOOP", "asyncio.run(main())")
BY_A_LOOP_THAT_IS_LEFT_OPEN = TASKS_THAT_ARE_LEFT_AT_ONCE.replace(
    "LOOP", "loop = asyncio.new_event_loop(); loop.run_until_complete(main())"
).replace("await asyncio.sleep(3600)", "pass")


@pytest.fixture
def urls(start_server: Callable[..., Deployment]) -> list[str]:
    """Fresh masters of the test's own, which know no script yet."""
    return [one.url for one in start_server().members]


def play(program: str, urls: list[str], first: str = "") -> str:
    """Run a program to its end, and `first` before relock is imported; return its output on stderr."""
    head = f"{first}import asyncio, redis, relock, sys, threading, time\nurls, count = {urls!r}, {len(urls)}\n"
    source = head + textwrap.dedent(program).replace("(urls)", "(urls, restart_guard=0, node_timeout=5.0)")
    child = spawn([sys.executable, "-W", "ignore", "-c", source], stderr=subprocess.PIPE, text=True)
    _, errors = child.communicate(timeout=ENDS_WITHIN_SECONDS)
    assert child.returncode == 0, errors
    return str(errors)


def holds_left(urls: list[str]) -> list[str]:
    """Return the holds that masters have, and the places in their queues."""
    left = []
    for url in urls:
        with redis.Redis.from_url(url, decode_responses=True) as master:
            left += [key for key in master.scan_iter("lock:{*") if master.type(key) in ("hash", "zset")]
    return left


@pytest.mark.parametrize(
    "program",
    [
        TASKS_THAT_TAKE_TURNS,
        TASKS_THAT_TAKE_PERMITS,
        BY_RUN,
        BY_A_LOOP_THAT_IS_LEFT_OPEN,
        A_RELEASE_THAT_A_MINORITY_DOES_NOT_KNOW,
    ],
    ids=["turns", "permits", "run", "an open loop", "minority"],
)
def test_what_tasks_had_under_way_is_finished_before_the_process_ends(program: str, urls: list[str]) -> None:
    play(program, urls)
    assert holds_left(urls) == []


@pytest.mark.parametrize("program", [THREADS_THAT_WAIT, THREADS_THAT_WAIT_FOR_PERMITS], ids=["lock", "permits"])
def test_daemon_threads_that_wait_leave_no_hold_and_end_without_a_word(program: str, urls: list[str]) -> None:
    """Threads inside a hold, or that come anew, are cut off by the end, but here no hold is left for a whole lease."""
    errors = play(program, urls)
    assert "Traceback" not in errors
    until(lambda: holds_left(urls) == [], within=20, what="no hold is left for a lease of 30 s")


def test_a_daemon_thread_that_waits_for_one_of_several_locks_gives_the_others_back(urls: list[str]) -> None:
    errors = play(A_THREAD_THAT_WAITS_FOR_ONE_OF_SEVERAL, urls)
    assert "Traceback" not in errors
    until(lambda: set(holds_left(urls)) == {"lock:{b}"}, within=20, what="only the hold of the other client is left")


def test_what_else_the_process_does_at_its_end_may_take_locks(urls: list[str]) -> None:
    """Handlers that were registered before the import of relock run when relock's handler has ended."""
    assert play(A_LAST_DEED_THAT_LOCKS, urls, LAST_DEEDS) == "did it under the lock\n"
