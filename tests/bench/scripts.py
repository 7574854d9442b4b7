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
from pathlib import Path
from typing import Any

from support.servers import Server, find_servers

from bench.floors import CLIENT, LEASE_MS, UNGUARDED, VOID, BareSocket, call_of, keys_of, own_pair, wish
from bench.machine import SERVERS, version_of
from relock._keys import LockKeys, client_channel, lock_keys
from relock._scripts import Script, load
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


def floor(bare: BareSocket) -> Turn:
    """Return a turn of pairs of the small scripts that the other floors are made of."""
    asked = with_small_scripts(bare, "bench-small")
    return pairs(bare, asked.take, asked.give)


def nested(bare: BareSocket, folder: Path | None) -> Turn:
    """Return a turn of nested acquires and their releases."""
    keys = lock_keys("bench-nested", "bench")
    count = _held(bare, folder, keys, "count")
    return pairs(bare, *(call_of(count, keys, count=number, lease_ms=0).pack(VOID, guarded=False) for number in (2, 1)))


def renewal(bare: BareSocket, folder: Path | None) -> Turn:
    """Return a turn of renewals of a hold, two at a time."""
    keys = lock_keys("bench-renewed", "bench")
    extend = _held(bare, folder, keys, "extend")
    command = call_of(extend, keys, lease_ms=2 * HOUR_MS, token_ms=2 * HOUR_MS + 1000).pack(VOID, guarded=False)
    return pairs(bare, command, command)


def _held(bare: BareSocket, folder: Path | None, keys: LockKeys, name: str) -> Script:
    """Return the script of this name, loaded, after making a hold that outlasts the measurement."""
    acquire, script = load("acquire", folder), load(name, folder)
    for one in (acquire, script):
        bare.load(one.source)
    bare.call(call_of(acquire, keys, lease_ms=HOUR_MS).pack(UNGUARDED, guarded=False))
    return script


class HandOvers:
    """Hand-overs of a turn: one hold, or one permit, after another, under new names as real ones have."""

    def __init__(self, bare: BareSocket, listener: BareSocket, folder: Path | None, limit: int = 0) -> None:
        self._bare, self._listener = bare, listener
        self._keys, self._wish = keys_of(f"bench-handed-{hash(folder):x}", limit), wish(limit).decode()
        operations = ("acquire", "enqueue", "release")
        self._scripts = {name: load(self._keys.script_name(name), folder) for name in operations}
        for script in self._scripts.values():
            bare.load(script.source)
        self._listener.call(packed("SUBSCRIBE", client_channel(self._keys.prefix, CLIENT)))
        self._number = 0

    def _new_name(self) -> bytes:
        self._number += 1
        return f"{CLIENT}:0123abcd{self._number:08x}{self._wish}@{HANDED_MS}".encode()

    def _call(self, name: str, owner: bytes) -> Any:
        call = call_of(self._scripts[name], self._keys, owner=owner)
        return self._bare.call(call.pack(UNGUARDED, guarded=False))

    def __call__(self) -> None:
        # A hold that a release gave ends after three seconds, and the other contestants' turns may take longer.
        self._bare.call(packed("DEL", self._keys.lock, self._keys.queue))
        holder = self._new_name()
        self._call("acquire", holder)
        for _ in range(PAIRS):
            self._call("enqueue", self._new_name())
            self._call("release", holder)
            _, _, message = self._listener.receive()
            _, uuid, hold, *_ = message.split(b" ")
            holder = b"%b:%b~%b" % (CLIENT.encode(), uuid, hold)


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
    turns: dict[str, Turn] = {FLOOR: floor(bare), HAND_OVER_FLOOR: hand_over_floor(bare, listener)}
    for number, folder in enumerate(folders):
        for limit, kind in ((0, ""), (1, PERMIT)):
            if limit and folder and not (folder / "permit_acquire.lua").exists():
                continue  # another commit's, which has no semaphores
            there, name = kind + (f" ({folder})" if folder else ""), f"bench-{number}-{limit}"
            turns[SHIPPED + there] = pairs(bare, *own_pair(bare, name, folder, limit=limit)(0))
            turns[GUARDED + there] = guarded(bare, f"{name}-guarded", folder, limit)
            quiet = own_pair(bare, f"{name}-quiet", folder, guarded=True, limit=limit)
            turns[QUIET + there] = pairs(bare, *quiet(0))
            turns[HAND_OVER + there] = HandOvers(bare, listener, folder, limit)
        there = f" ({folder})" if folder else ""
        turns["two nested levels" + there] = nested(bare, folder)
        turns["two renewals" + there] = renewal(bare, folder)
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
            print(f"{version_of(server)}: µs a pair, of the floor's")
        for name, micros in found.items():
            ratio = micros / found[HAND_OVER_FLOOR if name.startswith(HAND_OVER) else FLOOR]
            print(f"  {name:24} {micros:6.2f}  {ratio:.2f}")


if __name__ == "__main__":
    main()
