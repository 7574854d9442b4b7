"""Waits lose no message that comes before they begin, and none lasts longer than it may."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest
from attrs import Factory, define

from contract.rigs.calls import CALLS, SINGLE, Call, Kind, Permits, leave, make, shut, take
from contract.rigs.rig import BRIEF, SOON, Rig, Running, all_done, all_struck, calls, key_of, release_all
from contract.rigs.watch import At
from relock import Client, Lock, QuorumError
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.flows.release import give_back
from relock._core.lock_spec import HANDED_LEASE_SECONDS
from relock._runtime.net.loop_channel import LoopChannel
from relock._runtime.wakeups.hubs import Hubs

PATIENT = 20.0  # seconds: a node timeout that is longer than any wait here
HELP_SECONDS = 18.0  # a waiter without a message looks again after that time


def has_come(hubs: Hubs) -> bool:
    """Return whether a message is in a waiter's queue, or at a socket that the waiter itself will read."""
    connections = [one._connection for hub in hubs.all() for one in hub.subscriptions if one._connection is not None]
    is_woken = any(not waiter.wakes.empty() for waiter in hubs.waiters())
    return is_woken or any(
        connection.channel.wait(0.0)
        for connection in connections
        if connection.is_led or isinstance(connection.channel, LoopChannel)
    )


@pytest.mark.parametrize("kind", SINGLE)
def test_a_message_that_comes_before_the_wait(kind: Kind, rig: Rig, name: str) -> None:
    """The lock is released at each step that leads to the wait: at the last ones the message is there before the wait.

    Heartbeats would repair a lost message, so none reaches a master.
    """
    client, others = rig.client(node_timeout=PATIENT), rig.client(node_timeout=PATIENT)
    rig.warm_up(client, kind)
    rig.warm_up(others, kind)
    hubs = client._session.hubs
    for number in count(1):
        lock, _ = make(client, f"{name}-{number}", kind)
        holder = shut(others, lock.name, kind)
        for line in rig.lines:
            line.hold_request(calls(lock.name, "heartbeat", "permit_heartbeat", "read_heartbeat"))

        def let_go(holder: Lock | Permits = holder) -> None:
            is_queued = rig.is_queued(holder.name)
            holder.release()
            if is_queued:
                rig.until(partial(has_come, hubs), "the message has come")

        def begins_to_wait(what: str, holder: Lock | Permits = holder) -> bool:
            leads = what == "before poller.poll" and any(waiter.is_polling for waiter in hubs.waiters())
            return leads or (what == rig.sleep and rig.is_queued(holder.name))

        strike = At(number, let_go, at_latest=begins_to_wait)
        begin = rig.clock()
        with rig.watch.each(strike):
            assert lock.acquire(timeout=HELP_SECONDS)
        assert rig.clock() - begin < HELP_SECONDS, f"the lock was given back {strike.where}"
        leave(lock)
        leave(holder)
        if strike.seen < number:
            break
    assert number > 8, "the watch sees the steps"


def open_own_connections(rig: Rig, client: Client, lock: Lock) -> None:
    """Let the janitor open connections of its own, beside those that a call keeps in use, and load the script.

    Without a connection, it would ask a master only after the masters whose replies are held up had answered.
    """
    session = client._session
    held = [line.hold_request(calls("busy", "acquire")) for line in rig.lines]
    call = rig.start(client.lock("busy").acquire)
    rig.until(lambda: all_struck(held), "a call is under way")

    def are_open() -> bool:
        nothing = give_back(lock._spec, b"nobody", None, session.clock() + PATIENT)
        return all(isinstance(answer[0], list) for answer in session.ask_shielded(nothing))

    rig.until(are_open, "every master can be asked beside the call")
    release_all(held)
    assert call.result()


@pytest.mark.several
def test_a_place_is_kept_where_the_lock_is_given_after_it_was_given_back(rig: Rig, name: str) -> None:
    """A release comes late to two of three masters, where the waiter has given back its grant of the third by then."""
    clients = [rig.client(node_timeout=PATIENT) for _ in range(3)]
    for client in clients:
        rig.warm_up(client)
    holder, first, second = (client.lock(name, owner="me") for client in clients)
    open_own_connections(rig, clients[1], first)
    rig.take_everywhere(holder, 1)
    waiting = []

    def are_queued(count: int) -> bool:
        return rig.queued(name) == [count] * 3

    for number, lock in enumerate((first, second), start=1):
        waiting.append(rig.start(lock.acquire))
        rig.until(partial(are_queued, number), "the caller is queued")
        rig.until_heard_by_all(clients[number])
    two = rig.lines[:2]

    def places() -> list[list[bytes]]:
        return [rig.ask(master, "ZRANGE", f"{key_of(name)}:queue", 0, -1) for master in range(2)]

    before = places()
    late = [line.hold_request(calls(name, "release")) for line in two]
    given_back = [line.hold_reply(calls(name, "give_back")) for line in two]
    releasing = rig.start(holder.release)
    rig.until(lambda: all_struck(given_back), "the waiter has given back the grant of one master")
    undone = [line.hold_request(calls(name, "give_back")) for line in two]
    asked = [line.hold_request(calls(name, "enqueue")) for line in two]
    release_all(given_back)
    rig.until(lambda: all_struck(undone + asked), "the waiter asks again, and undoes what it may have got")
    release_all(late)
    rig.until(lambda: all_done(late), "the others give the waiter the lock")
    release_all(undone)
    rig.until(lambda: all_done(undone), "which is undone")
    assert places() == before, "the first waiter has its place again, before the second"
    release_all(asked)
    releasing.result()
    for lock, running in zip((first, second), waiting, strict=True):
        running.result()
        lock.release()
    rig.until_free(name, "both have had it")


TURN_LOST_SECONDS = 2 * HANDED_LEASE_SECONDS + HEARTBEAT_SECONDS  # a lease ends, a heartbeat shows it, a turn passes


@define
class Line:
    """Owners that queue for a lock one behind the other, each in a thread of its own.

    Attributes:
        order: the owners in the order in which they got the lock.
    """

    rig: Rig
    client: Client
    name: str
    order: list[str] = Factory(list)
    running: list[Running] = Factory(list)

    def join(self, owner: str) -> None:
        """Start a thread that waits for the lock as `owner`."""
        self.running.append(self.rig.start(partial(self._acquire, owner)))
        self.rig.until(partial(self.has, f":{owner}.", self.rig.masters), f"{owner} is queued")

    def has(self, waiter: str, masters: int) -> bool:
        """Return whether a waiter whose name contains `waiter` is queued on so many masters."""
        queues = [
            self.rig.ask(master, "ZRANGE", f"{key_of(self.name)}:queue", 0, -1) for master in range(self.rig.masters)
        ]
        return sum(any(waiter.encode() in name for name in queue) for queue in queues) >= masters

    def _acquire(self, owner: str) -> None:
        assert self.client.lock(self.name, owner=owner).acquire(timeout=2 * SOON)
        self.order.append(owner)

    def release(self, owner: str) -> None:
        self.rig.start(self.client.lock(self.name, owner=owner).release).result()

    def until_it_is(self, *order: str) -> None:
        self.rig.until(lambda: self.order == [*order], f"the lock goes to {order[-1]}")

    def play(self, deed: Callable[[], object]) -> None:
        """Run a function beside the test."""
        self.running.append(self.rig.start(deed))


@pytest.mark.parametrize("misses", [1, 2])
def test_a_waiter_that_can_not_act_loses_its_turn(misses: int, rig: Rig, name: str, driver: str) -> None:
    """Threads or event loops of waiters may stand still when their turn comes, in a long signal handler, for example.

    The waiter comes back to its old place once, and the second time to the end of the queue.
    """
    if misses > 1 and "virtual" not in driver:
        pytest.skip("in virtual time only")
    client, others = rig.client(), rig.client()
    rig.warm_up(client)
    rig.warm_up(others)
    line, victim = Line(rig, others, name), client._session.client_id
    take(others.lock(name, owner="holder"), 1)
    seconds: list[float] = []

    def goes_on_after(release: str, *order: str) -> None:
        begin = rig.clock()
        line.release(release)
        line.until_it_is(*order)
        seconds.append(rig.clock() - begin)
        # The next waiter may take the lock at the very end of the lease, when the turn is not missed yet.
        rig.until(lambda: not line.has(victim, 1), "the first one has left the queue")
        if misses > 1:  # else the lock may have gone on just before the turn counts as missed
            rig.until(lambda: rig.clock() > begin + TURN_LOST_SECONDS, "the turn is missed")

    def first_turn() -> None:
        line.join("second")
        line.join("third")
        goes_on_after("holder", "second")

    def second_turn() -> None:
        goes_on_after("second", "second", "third")
        line.join("fourth")

    turns = [first_turn, second_turn][:misses]

    def look(what: str, _wait: float) -> None:
        waiters = client._session.hubs.waiters()
        parks = max((waiter.parks for waiter in waiters), default=0)
        sleeps = what == "before Park" or parks > misses - len(turns)  # else the waiter may still end its last turn
        leads = what == "before poller.poll" and any(waiter.is_polling for waiter in waiters)
        if turns and sleeps and (leads or what == rig.sleep) and line.has(victim, rig.quorum):
            turns[0]()
            turns.pop(0)

    def is_back() -> bool:
        waiters = client._session.hubs.waiters()
        return any(waiter.parks > misses for waiter in waiters) and line.has(victim, rig.masters)

    def let_it_in() -> None:
        rig.until(lambda: not turns, "the waiter has missed its turns")
        rig.until(is_back, "the waiter has looked, and sleeps in the queue again")
        holder = line.order[-1]
        line.release(holder)
        if misses > 1:
            line.until_it_is("second", "third", "fourth")
            line.release("fourth")

    line.play(let_it_in)
    with rig.watch.each(look):
        assert client.lock(name).acquire(timeout=2 * SOON)
    line.order.append("first")
    client.lock(name).release()
    for running in line.running:
        running.result()
    assert line.order == (["second", "first", "third"] if misses == 1 else ["second", "third", "fourth", "first"])
    assert max(seconds) < TURN_LOST_SECONDS + rig.slack


def ends_in_time(
    rig: Rig, call: Callable[[], object], seconds: float, at_step: Callable[[str], object] = lambda _: None
) -> None:
    """Return whether a call ends within `seconds`, and never asks to wait for much longer.

    `at_step` is told each of the call's steps. A thread may stand still between its first look at the clock and a later
    one from which it counts. So in real time only a wait that is half as long again is too long.
    """
    begin = rig.clock()
    end, margin = begin + seconds, min(rig.slack, seconds / 2)
    too_long: list[str] = []

    def look(what: str, wait: float) -> None:
        if wait and rig.watch.now + wait > end + margin:
            too_long.append(f"{what} for {wait:.3f} s, {end - rig.watch.now:.3f} s before the end")
        at_step(what)

    with rig.watch.each(look):
        call()
    assert not too_long
    assert rig.clock() - begin < seconds + rig.slack


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_that_nobody_answers_ends_after_the_node_timeout(call: Call, kind: Kind, rig: Rig, name: str) -> None:
    client = rig.client(node_timeout=BRIEF)
    rig.warm_up(client, kind)
    lock, _ = make(client, name, kind, timeout=0)
    take(lock, call.levels)
    rig.go_silent()

    def do() -> None:
        try:
            call.do(lock)
        except QuorumError:
            depends = ("acquire", "with", "extend", *(["nested acquire"] if kind == "permits" else []))
            assert call.name in depends, "the result of this call depends on the masters"

    ends_in_time(rig, do, BRIEF)


@pytest.mark.parametrize("kind", ["one lock", "several"])
@pytest.mark.parametrize("answered", [False, True], ids=["from the beginning", "once it is queued"])
def test_a_timeout_holds_though_nobody_answers(answered: bool, kind: Kind, rig: Rig, name: str) -> None:
    """The caller of several locks has one of them, and gives it back."""
    timeout = 3 * BRIEF
    client, others = rig.client(node_timeout=BRIEF), rig.client()
    rig.warm_up(client)
    lock, singles = make(client, name, kind)
    take(others.lock(singles[-1].name), 1)

    def fall_silent(what: str) -> None:
        if what == rig.sleep:  # the caller is queued, and goes to sleep
            rig.go_silent()

    if not answered:
        rig.go_silent()
    begin = rig.clock()

    def wait() -> None:
        try:
            is_taken = lock.acquire(timeout=timeout)
        except QuorumError:
            return
        assert answered, "no master has said that the lock is taken"
        assert not is_taken, "the last request put the caller into the queue"

    ends_in_time(rig, wait, timeout + (2 if kind == "several" else 1) * BRIEF, fall_silent)
    assert rig.clock() - begin >= timeout
    assert client.statistics().waiting == 0
