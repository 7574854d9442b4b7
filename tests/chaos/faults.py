"""The first kinds of fault of the nemesis: each strikes, waits as long as it lasts, and mends its damage."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from support.proxy import Fault, Proxy, Words, calls_script

from chaos.field import Blow, Field
from chaos.history import clock
from chaos.kinds import (
    FIND_SECONDS,
    deaf_bound,
    guard_bound,
    kind,
    lease_bound,
    network,
    poll_bound,
    step_bound,
)
from chaos.waiting import wait_until

T = TypeVar("T")

CONNECTIONS = 40  # more than the workers have to one master

# Processes ----------------------------------------------------------------------------------------------------------


def choose(
    field: Field, dice: random.Random, blow: Blow, *, inside: bool, has_loop: bool = False, within: float = FIND_SECONDS
) -> str | None:
    """Return a process with a holder `inside`, or without one, as soon as there is one; perhaps one that `has_loop`."""
    found: list[str] = []

    def look() -> bool:
        process = field.pick_process(dice, inside=inside, has_loop=has_loop)
        if process is not None:
            found.append(process)
        return bool(found)

    wait_until(look, within)
    blow.process = found[0] if found else None
    blow.begin = clock()
    return blow.process


@kind("holder killed", lease_bound, anchor="begin", whom="holder", weight=3.0)
def kill_holder(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGKILL of a process with a holder."""
    _kill(field, blow, choose(field, dice, blow, inside=True))


@kind("waiter killed", deaf_bound, anchor="begin", whom="waiter", weight=2.0)
def kill_waiter(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGKILL of a process without a holder."""
    _kill(field, blow, choose(field, dice, blow, inside=False))


@kind("holder stopped", lease_bound, anchor="begin", whom="holder", weight=3.0)
def stop_holder(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP of a process with a holder, for less than a lease or for several."""
    stop(field, blow, choose(field, dice, blow, inside=True), dice.choice([0.3, 1.5, 1.5, 5.0]) * field.plan.ttl)


@kind("holder stopped for long", lease_bound, anchor="begin", whom="holder")
def stop_holder_for_long(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP of a process with a holder, always past its lease."""
    stop(field, blow, choose(field, dice, blow, inside=True), 1.5 * field.plan.ttl)


@kind("waiter stopped", deaf_bound, anchor="begin", whom="waiter", weight=2.0)
def stop_waiter(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP of a process without a holder: its connections stay open, and its turn may come while it stands still."""
    stop(field, blow, choose(field, dice, blow, inside=False), dice.choice([0.3, 1.5, 1.5, 3.0, 12.0]))


def _kill(field: Field, blow: Blow, process: str | None) -> None:
    if process is not None and not field.kill(process):  # another fault killed the process before
        blow.process = None


def wait_for_a_grant(field: Field) -> None:
    """Wait until a worker gets a lock."""
    before = sum(field.store.entries.values())
    wait_until(lambda: sum(field.store.entries.values()) > before, FIND_SECONDS)


def stop(field: Field, blow: Blow, process: str | None, seconds: float) -> None:
    """Stop a process for so long by SIGSTOP; the blow has no process if another fault came first."""
    with stopped(field, process or "") as is_stopped:
        if is_stopped:
            time.sleep(seconds)
        else:
            blow.process = None


@contextmanager
def stopped(field: Field, process: str) -> Iterator[bool]:
    """Keep a process stopped within the block, by SIGSTOP; yield False if another fault came first."""
    with field.lock:
        worker = None if process in field.stopped else field.workers.get(process)
        if worker is not None:
            field.stopped.add(process)
    if worker is None:
        yield False
        return
    try:
        with suppress(ProcessLookupError, ChildProcessError):  # another fault may have killed the process just now
            worker.stop()
        yield True
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            worker.cont()
        with field.lock:
            field.stopped.discard(process)


# Masters ------------------------------------------------------------------------------------------------------------


def each(blow: Blow, action: Callable[[int], T]) -> list[T]:
    """Do `action` to all masters that the blow strikes, at the same time."""
    with ThreadPoolExecutor(len(blow.masters)) as pool:
        return list(pool.map(action, blow.masters))


def _all(field: Field, blow: Blow, *words: object) -> None:
    """Send a command to all masters that the blow strikes; count those that took it."""
    blow.hit(sum(field.admin(field.servers[master], *words) for master in blow.masters))


def _everywhere(field: Field, blow: Blow, *words: object) -> None:
    """Send a command to these masters and their replicas: one may have been the master when the fault struck."""
    for server in [field.servers[master] for master in blow.masters] + [
        field.standbys[master] for master in blow.masters if field.standbys
    ]:
        field.admin(server, *words)


@kind("masters killed, back empty", guard_bound, forgets=True)
def restart_empty(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGKILL, and a restart without any data."""
    _restart(field, blow, dice.choice([0.0, 0.0, 0.5, 2.0]), empty=True)


@kind("masters killed, back on old data", guard_bound, forgets=True)
def restart_stale(field: Field, dice: random.Random, blow: Blow) -> None:
    """SAVE, and after the next grant SIGKILL and a restart on the saved data."""
    _all(field, blow, "SAVE")
    wait_for_a_grant(field)
    time.sleep(dice.uniform(0.0, 0.2))
    blow.begin = clock()
    _restart(field, blow, dice.choice([0.0, 0.5]), empty=False)


def _restart(field: Field, blow: Blow, down: float, *, empty: bool) -> None:
    def restart(master: int) -> None:
        with field.own[master]:
            field.servers[master].kill()
            time.sleep(down)
            field.servers[master].restart(empty=empty)

    each(blow, restart)


@kind("masters stopped", poll_bound)
def stop_masters(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP: the masters accept connections and answer nothing."""
    seconds = dice.uniform(0.3, 2.0) * field.plan.ttl

    def stop(master: int) -> None:
        with field.own[master]:
            field.servers[master].stop()
            time.sleep(seconds)
            field.servers[master].cont()

    each(blow, stop)


@kind("FLUSHALL", guard_bound, forgets=True)
def flush(field: Field, dice: random.Random, blow: Blow) -> None:
    """Delete all keys, the marker as well."""
    _all(field, blow, "FLUSHALL")


@kind("SCRIPT FLUSH", poll_bound)
def flush_scripts(field: Field, dice: random.Random, blow: Blow) -> None:
    """Make the masters forget all scripts, ten times."""
    for _ in range(10):
        _all(field, blow, "SCRIPT", "FLUSH")
        time.sleep(0.03)


@kind("CLIENT KILL normal", poll_bound)
def kill_connections(field: Field, dice: random.Random, blow: Blow) -> None:
    """End all connections but those with a subscription, three times."""
    for _ in range(3):
        _all(field, blow, "CLIENT", "KILL", "TYPE", "normal")
        time.sleep(0.05)


@kind("CLIENT KILL pubsub", poll_bound)
def kill_subscriptions(field: Field, dice: random.Random, blow: Blow) -> None:
    """End all connections with a subscription, three times."""
    for _ in range(3):
        _all(field, blow, "CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(0.05)


@kind("CLIENT PAUSE", poll_bound)
def pause(field: Field, dice: random.Random, blow: Blow) -> None:
    """CLIENT PAUSE: the masters go on reading, and let all commands wait, or those that write."""
    seconds = dice.uniform(0.2, 2.0)
    _all(field, blow, "CLIENT", "PAUSE", int(seconds * 1000), dice.choice(["ALL", "WRITE"]))
    time.sleep(seconds)


@kind("DEBUG SLEEP", poll_bound)
def debug_sleep(field: Field, dice: random.Random, blow: Blow) -> None:
    """Keep the masters busy, as an endless script does."""
    seconds = dice.uniform(0.2, 2.0)
    blow.hit(sum(each(blow, lambda master: field.admin(field.servers[master], "DEBUG", "SLEEP", seconds))))


@kind("maxmemory 1", poll_bound)
def fill_memory(field: Field, dice: random.Random, blow: Blow) -> None:
    """Leave no memory: the masters refuse all commands that need some."""
    try:
        _all(field, blow, "CONFIG", "SET", "maxmemory", 1)
        time.sleep(dice.uniform(0.2, 2.0))
    finally:
        _everywhere(field, blow, "CONFIG", "SET", "maxmemory", 0)


def _set_clocks(field: Field, blow: Blow, ahead: float, before: float) -> None:
    blow.hit(0)
    for master in blow.masters:
        settable = field.clocks[field.servers[master]]
        if settable is not None:
            if ahead > before and field.plan.masters == 1:
                blow.steps.append(clock())
            settable.set(ahead)
            blow.hit(1)


LEASES_AHEAD_MAX = 2  # at most, by which a clock is set ahead


@kind("clock ahead and back", step_bound, forgets=True, lonely=True, minority=True)
def step_ahead(field: Field, dice: random.Random, blow: Blow) -> None:
    """Set clocks two leases ahead, and back again."""
    ahead = LEASES_AHEAD_MAX * field.plan.ttl
    _set_clocks(field, blow, ahead, 0.0)
    time.sleep(dice.uniform(0.1, 1.5))
    _set_clocks(field, blow, 0.0, ahead)


@kind("clock back and ahead", step_bound, forgets=True, lonely=True, minority=True)
def step_back(field: Field, dice: random.Random, blow: Blow) -> None:
    """Set clocks two leases back, and ahead again."""
    _set_clocks(field, blow, -2 * field.plan.ttl, 0.0)
    time.sleep(dice.uniform(0.1, 1.5))
    _set_clocks(field, blow, 0.0, -2 * field.plan.ttl)


@kind("clock to and fro", step_bound, forgets=True, lonely=True, minority=True)
def strobe(field: Field, dice: random.Random, blow: Blow) -> None:
    """Set clocks a lease ahead and back, every tenth of a second."""
    for _ in range(5):
        _set_clocks(field, blow, field.plan.ttl, 0.0)
        time.sleep(0.1)
        _set_clocks(field, blow, 0.0, field.plan.ttl)
        time.sleep(0.1)


# The network --------------------------------------------------------------------------------------------------------


def _proxies(field: Field, blow: Blow) -> list[Proxy]:
    return [field.proxies[master] for master in blow.masters]


def anything(words: Words) -> bool:
    """Match every request and every message."""
    return True


@contextmanager
def _armed(blow: Blow, faults: Sequence[tuple[Proxy, Fault]]) -> Iterator[None]:
    """Count the faults that have struck; disarm the others, and release what they hold."""
    try:
        yield
    finally:
        blow.hit(sum(fault.struck.is_set() for _, fault in faults))
        for proxy, fault in faults:
            with proxy.lock:
                if fault in proxy.faults:
                    proxy.faults.remove(fault)
            fault.release()


SCRIPTS = ("acquire", "enqueue", "release", "count", "extend", "heartbeat", "heal")


@network("slow network")
def delay(field: Field, dice: random.Random, blow: Blow) -> None:
    """Let nothing through for a moment, again and again."""
    for _ in range(8):
        for proxy in _proxies(field, blow):
            proxy.pause()
        time.sleep(dice.uniform(0.02, 0.12))
        for proxy in _proxies(field, blow):
            proxy.resume()
        time.sleep(dice.uniform(0.01, 0.1))


@network("black hole")
def black_hole(field: Field, dice: random.Random, blow: Blow) -> None:
    """Let nothing through, and end no connection: all are half-open."""
    for proxy in _proxies(field, blow):
        proxy.pause()
    try:
        time.sleep(dice.uniform(0.3, 2.0) * field.plan.ttl)
    finally:
        for proxy in _proxies(field, blow):
            proxy.resume()


@network("connections broken")
def break_connections(field: Field, dice: random.Random, blow: Blow) -> None:
    """Break all connections, three times."""
    for _ in range(3):
        for proxy in _proxies(field, blow):
            proxy.break_all()
        time.sleep(0.1)


@network("lost replies")
def lose_replies(field: Field, dice: random.Random, blow: Blow) -> None:
    """Scripts run, and their replies are lost; the connections end, or stay open in silence."""
    close = dice.random() < 0.5
    faults = [
        (proxy, proxy.swallow_reply(calls_script(script), close=close, mute=not close))
        for proxy in _proxies(field, blow)
        for script in SCRIPTS
    ]
    with _armed(blow, faults):
        wait_until(lambda: all(fault.struck.is_set() for _, fault in faults), FIND_SECONDS)


@network("lost requests")
def lose_requests(field: Field, dice: random.Random, blow: Blow) -> None:
    """Scripts never run, and the connections end."""
    faults = [
        (proxy, proxy.lose_request(calls_script(script))) for proxy in _proxies(field, blow) for script in SCRIPTS
    ]
    with _armed(blow, faults):
        wait_until(lambda: all(fault.struck.is_set() for _, fault in faults), FIND_SECONDS)


@network("late requests")
def hold_requests(field: Field, dice: random.Random, blow: Blow) -> None:
    """Scripts arrive late, after requests that were sent after them; some only after their connections ended."""
    close = dice.random() < 0.5
    faults = [
        (proxy, proxy.hold_request(calls_script(script), close=close))
        for proxy in _proxies(field, blow)
        for script in SCRIPTS
    ]
    with _armed(blow, faults):
        time.sleep(dice.choice([0.1, 0.3, 0.6, 1.2]) * field.plan.ttl)


@network("replies cut")
def cut_replies(field: Field, dice: random.Random, blow: Blow) -> None:
    """Requests go through, but no reply does on those connections: one direction is cut."""
    faults = [
        (proxy, proxy.swallow_reply(anything, mute=True)) for proxy in _proxies(field, blow) for _ in range(CONNECTIONS)
    ]
    with _armed(blow, faults):
        time.sleep(dice.uniform(0.2, 1.0) * field.plan.ttl)


@network("requests cut")
def cut_requests(field: Field, dice: random.Random, blow: Blow) -> None:
    """Messages go through, but no request does: the other direction is cut. Held requests go on at the end."""
    faults = [(proxy, proxy.hold_request(anything)) for proxy in _proxies(field, blow) for _ in range(CONNECTIONS)]
    with _armed(blow, faults):
        time.sleep(dice.uniform(0.2, 1.5) * field.plan.ttl)


@network("lost wake-ups")
def lose_messages(field: Field, dice: random.Random, blow: Blow) -> None:
    """Messages are lost."""
    faults = [(proxy, proxy.swallow_message(anything)) for proxy in _proxies(field, blow) for _ in range(3)]
    with _armed(blow, faults):
        wait_until(lambda: all(fault.struck.is_set() for _, fault in faults), FIND_SECONDS)


@network("late releases")
def hold_releases(field: Field, dice: random.Random, blow: Blow) -> None:
    """A release arrives late, after other requests of its thread."""
    matches = calls_script("release")
    faults = [(proxy, proxy.hold_request(matches, close=True)) for proxy in _proxies(field, blow) for _ in range(4)]
    with _armed(blow, faults):
        wait_until(lambda: all(fault.struck.is_set() for _, fault in faults), FIND_SECONDS)
        time.sleep(dice.uniform(0.0, 1.0) * field.plan.ttl)
