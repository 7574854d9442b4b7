"""Usual cases of scripts: which commands they cost a server, and whether they do what the general cases do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from random import Random
from typing import Any

import redis
from attrs import evolve

from relock._keys import LockKeys
from relock._scripts import Script, load
from relock.testing._master import VirtualMaster
from support.replies import as_list
from support.script_master import LeasedMaster
from support.servers import Server

NOW_US = 1_700_000_000_000_000
DRAWS = 1_500
Outcome = Callable[[Script, Random], object]


@contextmanager
def counted(client: Any) -> Iterator[dict[str, int]]:
    """Count the commands that scripts send in the block; what is yielded has the counts after the block."""
    calls: dict[str, int] = {}
    client.config_resetstat()
    yield calls
    calls |= {name.removeprefix("cmdstat_"): said["calls"] for name, said in client.info("commandstats").items()}
    for outside in ("eval", "config|resetstat", "config", "info"):
        calls.pop(outside, None)


def check_commands(server: Server, make: Callable[..., LeasedMaster], name: str, commands: dict[str, int]) -> None:
    """Check that a call, which finds its hold if it is no acquire, sends these commands and no others."""
    with closing(redis.Redis.from_url(server.url)) as client:
        client.flushall()
        master = make(client)
        if name != "acquire":
            master.call("acquire")
        with counted(client) as calls:
            master.call(name)
    assert calls == commands


def without_usual_case(name: str, line: bytes, never: bytes) -> Script:
    """Return the script without its usual case: with `never` in place of the line that leads there."""
    script = load(name)
    assert script.source.count(line) == 1
    return evolve(script, source=script.source.replace(line, never), sha=f"general {name}")


def check_usual_case(name: str, line: bytes, never: bytes, outcome: Outcome, *, seed: int) -> None:
    """Check that a script without its usual case has the same outcomes."""
    usual, general = load(name), without_usual_case(name, line, never)
    for one in range(seed, seed + DRAWS):
        assert outcome(usual, Random(one)) == outcome(general, Random(one)), one


def heard_by(
    clients: Sequence[str], clock: Callable[[], int] = lambda: NOW_US + 7
) -> tuple[VirtualMaster, list[bytes]]:
    """Return a master on which these clients listen, and the messages published there."""
    master, heard = VirtualMaster(clock, "this"), list[bytes]()
    for client in clients:
        master.subscribe(f"lock:client:{client}".encode(), lambda _, message: heard.append(message))
    return master, heard


def draw_queue(master: VirtualMaster, keys: LockKeys, draw: Random, waiters: Sequence[bytes]) -> None:
    """Put some of these waiters into the queue."""
    for place, waiter in enumerate(draw.sample(waiters, draw.choice([0, 0, 1, 2, 3]))):
        master.read("ZADD", keys.queue, place + 1, waiter)
        master.read("ZADD", keys.waiters, NOW_US // 1000 + draw.choice([-1, 7_000, 7_000]), waiter)


def draw_oddities(master: VirtualMaster, keys: LockKeys, draw: Random) -> None:
    """Draw a key of another program, the last token and a full memory; have all keys live for a while."""
    if draw.random() < 0.1:
        master.read("SET", draw.choice([keys.lock, keys.leases, keys.queue]), b"another program's")
    if draw.random() < 0.7:
        master.read("SET", keys.token, draw.choice([b"1699999999000000", b"%d" % (NOW_US + 9), b"x"]), b"PX", 20_000)
    for key in (keys.lock, keys.leases, keys.queue, keys.waiters):
        master.read("PEXPIRE", key, 5_000)
    master.is_full = draw.random() < 0.1


def reply_of(
    master: VirtualMaster, script: Script, keys: LockKeys, given: dict[str, Any], *rest: Any, not_after_us: int
) -> Any:
    """Run a script; return its reply, or the type of its error."""
    made = script.call(keys, *rest, **{argument: given[argument] for argument in script.own_arguments})
    try:
        return as_list(master.execute(made, not_after_us, b"this:repl", 0))
    except Exception as error:
        return type(error)
