"""The kinds of fault: each strikes, waits as long as it lasts, and mends what it did."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from attrs import frozen
from support.proxy import Fault, Proxy, Words, calls_script

from chaos.field import Blow, Field
from chaos.history import clock

Strike = Callable[[Field, random.Random, Blow], object]

LOOK_SECONDS = 0.005
FIND_SECONDS = 1.0  # how long a fault looks for what it is to strike
CONNECTIONS = 40  # more than the workers have to one master


@frozen
class Kind:
    """One kind of fault.

    Attributes:
        bound: within how many seconds of its `anchor` somebody has to be granted the lock, while all is as planned;
            a function of the ttl and of the guard.
        anchor: ``begin`` where the lock is to go on under the fault, ``end`` where it may stand still until then.
        forgets: masters that it strikes have no vote for a while afterwards.
        lonely: no other fault of masters may come with it: only of a minority is it promised that it does no harm.
        minority: it strikes a minority of several masters only.
        is_network: it is the proxies that strike.
        weight: how often it is chosen.
    """

    name: str
    strike: Strike
    bound: Callable[[float, float], float]
    anchor: str = "end"
    whom: str = "masters"
    forgets: bool = False
    lonely: bool = False
    minority: bool = False
    is_network: bool = False
    weight: float = 1.0

    def may_come_with(self, other: "Kind") -> bool:
        """Whether another fault may strike at the same time, chosen after this one."""
        return not other.lonely and not (self.lonely and other.whom == "masters")


KINDS: dict[str, Kind] = {}

# T = the lease, G = the guard. A sign of life is given every 3 s; a waiter that gives none for 10 s is passed over.
POLL_SECONDS = 3.0
DEAF_SECONDS = 10.0


def _lease(ttl: float, guard: float) -> float:
    return ttl + POLL_SECONDS


def _poll(ttl: float, guard: float) -> float:
    return POLL_SECONDS


def _guard(ttl: float, guard: float) -> float:
    return 1.02 * guard + POLL_SECONDS


def _step(ttl: float, guard: float) -> float:
    return 2 * ttl + 1.02 * guard + POLL_SECONDS


def _deaf(ttl: float, guard: float) -> float:
    return DEAF_SECONDS + POLL_SECONDS


def kind(name: str, bound: Callable[[float, float], float], **options: object) -> Callable[[Strike], Strike]:
    """Makes a function a kind of fault."""

    def keep(strike: Strike) -> Strike:
        KINDS[name] = Kind(name, strike, bound, **options)  # type: ignore[arg-type]
        return strike

    return keep


def network(name: str) -> Callable[[Strike], Strike]:
    """Makes a function a kind of fault of the network."""
    return kind(name, _poll, is_network=True)


def wait_until(predicate: Callable[[], object], seconds: float) -> bool:
    """Looks until it is true, for so many seconds at most; whether it was."""
    end = clock() + seconds
    while not predicate():
        if clock() > end:
            return False
        time.sleep(LOOK_SECONDS)
    return True


# Processes ----------------------------------------------------------------------------------------------------------


def _choose(field: Field, dice: random.Random, blow: Blow, *, inside: bool) -> str | None:
    """A holder, or somebody who holds nothing, as soon as there is one."""
    found: list[str] = []

    def look() -> bool:
        process = field.pick_process(dice, inside=inside)
        if process is not None:
            found.append(process)
        return bool(found)

    wait_until(look, FIND_SECONDS)
    blow.process = found[0] if found else None
    blow.begin = clock()
    return blow.process


@kind("holder killed", _lease, anchor="begin", whom="holder", weight=3.0)
def kill_holder(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGKILL of a process that is inside."""
    _kill(field, blow, _choose(field, dice, blow, inside=True))


@kind("waiter killed", _deaf, anchor="begin", whom="waiter", weight=2.0)
def kill_waiter(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGKILL of a process that is not."""
    _kill(field, blow, _choose(field, dice, blow, inside=False))


@kind("holder stopped", _lease, anchor="begin", whom="holder", weight=3.0)
def stop_holder(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP of a process that is inside, for less than a lease or for several."""
    _stop(field, blow, _choose(field, dice, blow, inside=True), dice.choice([0.3, 1.5, 1.5, 5.0]) * field.plan.ttl)


@kind("holder stopped for long", _lease, anchor="begin", whom="holder")
def stop_holder_for_long(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP of a process that is inside, always past its lease."""
    _stop(field, blow, _choose(field, dice, blow, inside=True), 1.5 * field.plan.ttl)


@kind("waiter stopped", _deaf, anchor="begin", whom="waiter", weight=2.0)
def stop_waiter(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP of a process that is not: its connections stay open, and its turn may come, and may have to pass."""
    _stop(field, blow, _choose(field, dice, blow, inside=False), dice.choice([0.3, 1.5, 1.5, 3.0, 12.0]))


def _kill(field: Field, blow: Blow, process: str | None) -> None:
    if process is not None and not field.kill(process):  # another fault was there before
        blow.process = None


def _stop(field: Field, blow: Blow, process: str | None, seconds: float) -> None:
    with field.lock:
        worker = field.workers.get(process or "")
        if worker is None or process is None or process in field.stopped:
            blow.process = None
            return
        field.stopped.add(process)
    with suppress(ProcessLookupError, ChildProcessError):  # another fault may have killed it just now
        worker.stop()
        time.sleep(seconds)
        worker.cont()
    with field.lock:
        field.stopped.discard(process)


# Masters ------------------------------------------------------------------------------------------------------------


def _each(field: Field, blow: Blow, action: Callable[[int], object]) -> None:
    """Does it to all masters that are struck, at the same time."""
    with ThreadPoolExecutor(len(blow.masters)) as pool:
        list(pool.map(action, blow.masters))


def _all(field: Field, blow: Blow, *words: object) -> None:
    """A command to all masters that are struck; those that took it count."""
    blow.hit(sum(field.admin(master, *words) for master in blow.masters))


@kind("masters killed, back empty", _guard, forgets=True)
def restart_empty(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGKILL, and a restart without any data."""
    _restart(field, blow, dice.choice([0.0, 0.0, 0.5, 2.0]), empty=True)


@kind("masters killed, back on old data", _guard, forgets=True)
def restart_stale(field: Field, dice: random.Random, blow: Blow) -> None:
    """SAVE, and once somebody has been granted a lock since, SIGKILL and a restart on what was saved."""
    _all(field, blow, "SAVE")
    before = sum(field.store.entries.values())
    wait_until(lambda: sum(field.store.entries.values()) > before, FIND_SECONDS)
    time.sleep(dice.uniform(0.0, 0.2))
    blow.begin = clock()
    _restart(field, blow, dice.choice([0.0, 0.5]), empty=False)


def _restart(field: Field, blow: Blow, down: float, *, empty: bool) -> None:
    def restart(master: int) -> None:
        with field.own[master]:
            field.servers[master].kill()
            time.sleep(down)
            field.servers[master].restart(empty=empty)

    _each(field, blow, restart)


@kind("masters stopped", _poll)
def stop_masters(field: Field, dice: random.Random, blow: Blow) -> None:
    """SIGSTOP: they accept connections and answer nothing."""
    seconds = dice.uniform(0.3, 2.0) * field.plan.ttl

    def stop(master: int) -> None:
        with field.own[master]:
            field.servers[master].stop()
            time.sleep(seconds)
            field.servers[master].cont()

    _each(field, blow, stop)


@kind("FLUSHALL", _guard, forgets=True)
def flush(field: Field, dice: random.Random, blow: Blow) -> None:
    """All keys go, the marker as well."""
    _all(field, blow, "FLUSHALL")


@kind("SCRIPT FLUSH", _poll)
def flush_scripts(field: Field, dice: random.Random, blow: Blow) -> None:
    """The masters know no script any more, ten times."""
    for _ in range(10):
        _all(field, blow, "SCRIPT", "FLUSH")
        time.sleep(0.03)


@kind("CLIENT KILL normal", _poll)
def kill_connections(field: Field, dice: random.Random, blow: Blow) -> None:
    """All connections but those that subscribe, three times."""
    for _ in range(3):
        _all(field, blow, "CLIENT", "KILL", "TYPE", "normal")
        time.sleep(0.05)


@kind("CLIENT KILL pubsub", _poll)
def kill_subscriptions(field: Field, dice: random.Random, blow: Blow) -> None:
    """All connections that subscribe, three times."""
    for _ in range(3):
        _all(field, blow, "CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(0.05)


@kind("CLIENT PAUSE", _poll)
def pause(field: Field, dice: random.Random, blow: Blow) -> None:
    """They go on reading, and keep all commands, or those that write, waiting."""
    seconds = dice.uniform(0.2, 2.0)
    _all(field, blow, "CLIENT", "PAUSE", int(seconds * 1000), dice.choice(["ALL", "WRITE"]))
    time.sleep(seconds)


@kind("DEBUG SLEEP", _poll)
def debug_sleep(field: Field, dice: random.Random, blow: Blow) -> None:
    """They are busy, as with an endless script."""
    seconds = dice.uniform(0.2, 2.0)
    slept: list[bool] = []
    _each(field, blow, lambda master: slept.append(field.admin(master, "DEBUG", "SLEEP", seconds)))
    blow.hit(sum(slept))


@kind("maxmemory 1", _poll)
def fill_memory(field: Field, dice: random.Random, blow: Blow) -> None:
    """No memory is left: whatever needs any is refused."""
    try:
        _all(field, blow, "CONFIG", "SET", "maxmemory", 1)
        time.sleep(dice.uniform(0.2, 2.0))
    finally:
        _all(field, blow, "CONFIG", "SET", "maxmemory", 0)


def _set_clocks(field: Field, blow: Blow, ahead: float, before: float) -> None:
    blow.hit(0)
    for master in blow.masters:
        settable = field.clocks[master]
        if settable is not None:
            if ahead > before and field.plan.masters == 1:
                blow.steps.append(clock())
            settable.set(ahead)
            blow.hit(1)


LEASES_AHEAD_MAX = 2  # by so many leases clocks are set ahead


@kind("clock ahead and back", _step, forgets=True, lonely=True, minority=True)
def step_ahead(field: Field, dice: random.Random, blow: Blow) -> None:
    """Two leases ahead, and back again."""
    ahead = LEASES_AHEAD_MAX * field.plan.ttl
    _set_clocks(field, blow, ahead, 0.0)
    time.sleep(dice.uniform(0.1, 1.5))
    _set_clocks(field, blow, 0.0, ahead)


@kind("clock back and ahead", _step, forgets=True, lonely=True, minority=True)
def step_back(field: Field, dice: random.Random, blow: Blow) -> None:
    """Two leases back, and ahead again."""
    _set_clocks(field, blow, -2 * field.plan.ttl, 0.0)
    time.sleep(dice.uniform(0.1, 1.5))
    _set_clocks(field, blow, 0.0, -2 * field.plan.ttl)


@kind("clock to and fro", _step, forgets=True, lonely=True, minority=True)
def strobe(field: Field, dice: random.Random, blow: Blow) -> None:
    """A lease ahead and back, every tenth of a second."""
    for _ in range(5):
        _set_clocks(field, blow, field.plan.ttl, 0.0)
        time.sleep(0.1)
        _set_clocks(field, blow, 0.0, field.plan.ttl)
        time.sleep(0.1)


# The network --------------------------------------------------------------------------------------------------------


def _proxies(field: Field, blow: Blow) -> list[Proxy]:
    return [field.proxies[master] for master in blow.masters]


def anything(words: Words) -> bool:
    """Matches every request and every message."""
    return True


@contextmanager
def _armed(blow: Blow, faults: Sequence[tuple[Proxy, Fault]]) -> Iterator[None]:
    """Counts those that have struck, and disarms and lets go the others."""
    try:
        yield
    finally:
        blow.hit(sum(fault.struck.is_set() for _, fault in faults))
        for proxy, fault in faults:
            with proxy.lock:
                if fault in proxy.faults:
                    proxy.faults.remove(fault)
            fault.release()


SCRIPTS = ("acquire", "enqueue", "release", "count", "extend", "tend", "heal")


@network("slow network")
def delay(field: Field, dice: random.Random, blow: Blow) -> None:
    """Nothing goes through for a moment, again and again."""
    for _ in range(8):
        for proxy in _proxies(field, blow):
            proxy.pause()
        time.sleep(dice.uniform(0.02, 0.12))
        for proxy in _proxies(field, blow):
            proxy.resume()
        time.sleep(dice.uniform(0.01, 0.1))


@network("black hole")
def black_hole(field: Field, dice: random.Random, blow: Blow) -> None:
    """Nothing goes through, and no connection ends: half-open ones."""
    for proxy in _proxies(field, blow):
        proxy.pause()
    try:
        time.sleep(dice.uniform(0.3, 2.0) * field.plan.ttl)
    finally:
        for proxy in _proxies(field, blow):
            proxy.resume()


@network("connections broken")
def break_connections(field: Field, dice: random.Random, blow: Blow) -> None:
    """All of them, three times."""
    for _ in range(3):
        for proxy in _proxies(field, blow):
            proxy.break_all()
        time.sleep(0.1)


@network("lost replies")
def lose_replies(field: Field, dice: random.Random, blow: Blow) -> None:
    """Scripts run, and their replies reach nobody; the connections end, or stay open in silence."""
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
    """Scripts come late, past all that was sent after them; some only after their connections ended."""
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
    """Requests go through, and from then on no reply on those connections: one direction is cut."""
    faults = [
        (proxy, proxy.swallow_reply(anything, mute=True)) for proxy in _proxies(field, blow) for _ in range(CONNECTIONS)
    ]
    with _armed(blow, faults):
        time.sleep(dice.uniform(0.2, 1.0) * field.plan.ttl)


@network("requests cut")
def cut_requests(field: Field, dice: random.Random, blow: Blow) -> None:
    """Messages go through, and no request: the other direction is cut. What was held back goes on at the end."""
    faults = [(proxy, proxy.hold_request(anything)) for proxy in _proxies(field, blow) for _ in range(CONNECTIONS)]
    with _armed(blow, faults):
        time.sleep(dice.uniform(0.2, 1.5) * field.plan.ttl)


@network("lost wake-ups")
def lose_messages(field: Field, dice: random.Random, blow: Blow) -> None:
    """Messages reach nobody."""
    faults = [(proxy, proxy.swallow_message(anything)) for proxy in _proxies(field, blow) for _ in range(3)]
    with _armed(blow, faults):
        wait_until(lambda: all(fault.struck.is_set() for _, fault in faults), FIND_SECONDS)


@network("late releases")
def hold_releases(field: Field, dice: random.Random, blow: Blow) -> None:
    """A release comes late, past what its thread has done since."""
    matches = calls_script("release")
    faults = [(proxy, proxy.hold_request(matches, close=True)) for proxy in _proxies(field, blow) for _ in range(4)]
    with _armed(blow, faults):
        wait_until(lambda: all(fault.struck.is_set() for _, fault in faults), FIND_SECONDS)
        time.sleep(dice.uniform(0.0, 1.0) * field.plan.ttl)
