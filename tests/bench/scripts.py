"""Measure for how long scripts keep a server busy: ``python -m bench.scripts [--rounds N]`` in ``tests``.

A pair is an acquire and a release, or two calls of another script. A *hand-over* is a pair as well: one waiter queues
behind the holder, whose release gives it the lock. A *permit* is the one of a semaphore with a limit of 1.

The figures are the server's own: the sum of ``INFO commandstats`` for ``EVALSHA``. So the network, the reading of a
request and the sending of its reply are no part of them. All contestants take turns, round after round, and the median
over the rounds counts. A turn sends requests one by one, each after the reply to the one before.

``--beside FOLDER`` measures the scripts of another folder ``lua`` as well.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

from support.servers import Server, find_servers

from bench.floors import CLIENT, LEASE_MS, UNGUARDED, VOID, BareSocket, call_of, keys_of, own_pair, wish
from bench.machine import SERVERS
from relock._keys import client_channel, lock_keys
from relock._scripts import load
from relock.cli._bench.floor.pairs import with_small_scripts
from relock.cli._bench.floor.sockets import FOLDER, packed

HAND_OVER, HAND_OVER_FLOOR = "hand-over", "hand-over: floor"
FLOOR, SHIPPED, GUARDED, QUIET = "floor", "shipped", "guarded", "guarded, quiet"
PERMIT = ", permit"
ROUNDS, PAIRS = 21, 250
HOUR_MS = 3_600_000
HANDED_MS = 3_000

Turn = Callable[[], None]
"""Make `PAIRS` pairs."""


def pairs(bare: BareSocket, *commands: bytes) -> Turn:
    """Return a turn of pairs of the same commands."""

    def turn() -> None:
        for _ in range(PAIRS):
            for command in commands:
                bare.call(command)

    return turn


def guarded(bare: BareSocket, name: str, folder: Path | None, limit: int = 0) -> Turn:
    """Return a turn of pairs with a guard that is over, on a socket whose last vote was just now."""
    commands_at = own_pair(bare, name, folder, guarded=True, limit=limit)

    def turn() -> None:
        for _ in range(PAIRS):
            seconds, micros = bare.call(packed("TIME"))
            for command in commands_at(int(seconds) * 1_000_000 + int(micros)):
                bare.call(command)

    return turn


def of_a_hold(bare: BareSocket, folder: Path | None, name: str, *others: dict[str, int]) -> Turn:
    """Return a turn of calls of the script of this name, with other arguments each, on a hold that outlasts it."""
    keys, acquire, script = lock_keys(f"bench-{name}", "bench"), load("acquire", folder), load(name, folder)
    for one in (acquire, script):
        bare.load(one.source)
    bare.call(call_of(acquire, keys, lease_ms=HOUR_MS).pack(UNGUARDED, guarded=False))
    return pairs(bare, *(call_of(script, keys, **given).pack(VOID, guarded=False) for given in others))


def hand_over(bare: BareSocket, listener: BareSocket, folder: Path | None, limit: int = 0) -> Turn:
    """Return a turn of hand-overs: one hold, or one permit, after another, under new names as real ones have."""
    keys, numbers = keys_of(f"bench-handed-{hash(folder):x}", limit), count()
    scripts = {name: load(keys.script_name(name), folder) for name in ("acquire", "enqueue", "release")}
    for script in scripts.values():
        bare.load(script.source)
    listener.call(packed("SUBSCRIBE", client_channel(keys.prefix, CLIENT)))

    def new_name() -> bytes:
        return f"{CLIENT}:0123abcd{next(numbers):08x}{wish(limit).decode()}@{HANDED_MS}".encode()

    def call(name: str, owner: bytes) -> None:
        bare.call(call_of(scripts[name], keys, owner=owner).pack(UNGUARDED, guarded=False))

    def turn() -> None:
        # A hold that a release gave ends after three seconds, and the other contestants' turns may take longer.
        bare.call(packed("DEL", keys.lock, keys.queue))
        holder = new_name()
        call("acquire", holder)
        for _ in range(PAIRS):
            call("enqueue", new_name())
            call("release", holder)
            _, _, message = listener.receive()
            _, uuid, hold, *_ = message.split(b" ")
            holder = b"%b:%b~%b" % (CLIENT.encode(), uuid, hold)

    return turn


def hand_over_floor(bare: BareSocket, listener: BareSocket) -> Turn:
    """Return a turn of hand-overs by the small scripts of the floor of one hop, for two that take turns."""
    enter, give = (bare.load((FOLDER / f"{name}.lua").read_bytes()) for name in ("enter", "grant"))
    keys, names = ("bench-hop", "bench-hop:queue"), ("bench-one", "bench-two")
    bare.call(packed("DEL", *keys))
    for name in names:
        listener.call(packed("SUBSCRIBE", name))
    enters, gives = ([packed("EVALSHA", sha, 2, *keys, name, LEASE_MS) for name in names] for sha in (enter, give))
    bare.call(enters[0])

    def turn() -> None:
        for i in range(PAIRS):
            bare.call(enters[(i + 1) % 2])
            bare.call(gives[i % 2])
            listener.receive()

    return turn


def contestants(bare: BareSocket, listener: BareSocket, folders: Sequence[Path | None]) -> dict[str, Turn]:
    """Return all contestants by name."""
    small = with_small_scripts(bare, "bench-small")
    turns = {FLOOR: pairs(bare, small.take, small.give), HAND_OVER_FLOOR: hand_over_floor(bare, listener)}
    levels = [{"count": number, "lease_ms": 0} for number in (2, 1)]
    renewals = [{"lease_ms": 2 * HOUR_MS, "token_ms": 2 * HOUR_MS + 1000}] * 2
    for number, folder in enumerate(folders):
        there = f" ({folder})" if folder else ""
        for limit, kind in ((0, there), (1, PERMIT + there)):
            if limit and folder and not (folder / "permit_acquire.lua").exists():
                continue  # another commit's, which has no semaphores
            name = f"bench-{number}-{limit}"
            turns[SHIPPED + kind] = pairs(bare, *own_pair(bare, name, folder, limit=limit)(0))
            turns[GUARDED + kind] = guarded(bare, f"{name}-guarded", folder, limit)
            turns[QUIET + kind] = pairs(bare, *own_pair(bare, f"{name}-quiet", folder, guarded=True, limit=limit)(0))
            turns[HAND_OVER + kind] = hand_over(bare, listener, folder, limit)
        turns["two nested levels" + there] = of_a_hold(bare, folder, "count", *levels)
        turns["two renewals" + there] = of_a_hold(bare, folder, "extend", *renewals)
    return turns


def measure(port: int, folders: Sequence[Path | None], rounds: int) -> dict[str, float]:
    """Return for how long (µs) a pair of each keeps the server at this port busy, in turn: the medians."""
    with closing(BareSocket(port)) as bare, closing(BareSocket(port)) as listener:
        everybody = contestants(bare, listener, folders)
        times_us: dict[str, list[float]] = {name: [] for name in everybody}
        for turn in everybody.values():
            turn()  # loads the scripts
        for _ in range(rounds):
            for name, turn in everybody.items():
                before = _spent(bare)
                turn()
                after = _spent(bare)
                times_us[name].append(2 * (after[0] - before[0]) / (after[1] - before[1]))
        return {name: round(statistics.median(times), 2) for name, times in times_us.items()}


def _spent(bare: BareSocket) -> tuple[int, int]:
    """Return the microseconds of all EVALSHA so far, and how many there were."""
    info: str = bare.call(packed("INFO", "commandstats")).decode()
    line = next(line for line in info.splitlines() if line.startswith("cmdstat_evalsha:"))
    fields = dict(pair.split("=") for pair in line.partition(":")[2].split(","))
    return int(fields["usec"]), int(fields["calls"])


def server_microseconds(port: int) -> dict[str, float]:
    """Return for how long (µs) relock's pair and the floor's keep the server at this port busy."""
    found = measure(port, (None,), ROUNDS)
    return {name: found[name] for name in (SHIPPED, FLOOR)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scripts", description="For how long scripts keep a server.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each measurement (default: %(default)s)")
    parser.add_argument("--beside", type=Path, action="append", default=[], help="another folder of scripts")
    options = parser.parse_args()
    folders = [None, *(folder.resolve() for folder in options.beside)]
    for kind, program in find_servers().items():
        if kind not in SERVERS:
            continue
        with closing(Server(kind, program).start()) as server:
            found = measure(server.port, folders, options.rounds)
            print(f"{server.version()}: µs a pair, of the floor's")
        for name, micros in found.items():
            ratio = micros / found[HAND_OVER_FLOOR if name.startswith(HAND_OVER) else FLOOR]
            print(f"  {name:24} {micros:6.2f}  {ratio:.2f}")


if __name__ == "__main__":
    main()
