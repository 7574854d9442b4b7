"""The waiting thread that reads the subscriptions for the others: however it ends, no other waiter is delayed."""

import os
import signal
import threading
from collections.abc import Callable

import pytest
from support.alarms import AlarmError
from support.heartbeats import without_any_heartbeat
from support.masters import Deployment
from support.until import until

from relock import Client, Lock
from relock._runtime.wakeups.thread_subscription import ThreadSubscription
from relock._runtime.wakeups.waiter import Waiter

pytestmark = pytest.mark.every_quorum

LONG = 60.0  # seconds that nothing here may take
Connect = Callable[..., Client]


def leads(client: Client, name: str) -> bool:
    """Return whether the thread that waits for the lock `name` reads all subscriptions."""
    connections = [subscription._connection for subscription in client._session.hub.subscriptions]
    if not all(connection is not None and connection.is_led for connection in connections):
        return False
    leaders = list(client._session.hub.shared._role.values())
    return any(isinstance(leader, Waiter) and leader.keys.name == name for leader in leaders)


class Follower:
    """A thread that takes a lock, and releases it."""

    def __init__(self, lock: Lock) -> None:
        self.has_it = threading.Event()
        self._lock = lock
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._lock:
            self.has_it.set()

    def join(self) -> None:
        self._thread.join()


@pytest.fixture
def held(connect: Connect, server: Deployment, name: str) -> tuple[Lock, Lock]:
    """Two locks that another client has."""
    other = connect(server.url)
    locks = other.lock(f"{name}-own", owner="other"), other.lock(f"{name}-other", owner="other")
    for lock in locks:
        assert lock.acquire()
    return locks


def once_it_leads(client: Client, own: Lock, then: Callable[[], None]) -> None:
    """Call `then`, in another thread, once a thread that waits for `own` reads the subscriptions of `client`."""

    def run() -> None:
        until(lambda: leads(client, own.name), within=LONG, what="the waiter leads")
        then()

    threading.Thread(target=run).start()


def follow(client: Client, other: Lock) -> Follower:
    """Return the thread that waits for `other` while another one leads."""
    follower = Follower(client.lock(other.name))
    until(lambda: client.statistics().waiting == 2, within=LONG, what="both wait")
    return follower


def test_a_leader_in_a_signal_handler_is_deposed(client: Client, held: tuple[Lock, Lock]) -> None:
    """Followers of such a leader would be deaf, though the masters count them as listening."""
    own, other = held
    hub, has_begun, may_end = client._session.hub, threading.Event(), threading.Event()

    def handle(*_: object) -> None:
        has_begun.set()
        may_end.wait(LONG)

    def strike() -> None:
        follower, connections = follow(client, other), [one._connection for one in hub.subscriptions]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert has_begun.wait(LONG), "the leader is in the handler"
        other.release()
        until(
            lambda: all(
                one._connection is not None and one._connection not in connections for one in hub.subscriptions
            ),
            within=LONG,
            what="other connections are read",
        )
        assert follower.has_it.wait(LONG)
        follower.join()
        may_end.set()
        own.release()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        once_it_leads(client, own, strike)
        with client.lock(own.name):
            assert may_end.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_leader_hears_its_own_message(
    client: Client, held: tuple[Lock, Lock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No switch of threads is between the message and the only thread that waits.

    Of several masters, this is true of the first message: the thread may then have its quorum by asking, and leave.
    After a heartbeat it might ask even before the first message.
    """
    own, _ = held
    readers, message = list[int](), client._session.hub.message

    def note(subscription: ThreadSubscription, payload: bytes) -> None:
        readers.append(threading.get_ident())
        message(subscription, payload)

    monkeypatch.setattr(client._session.hub, "message", note)
    once_it_leads(client, own, own.release)
    with without_any_heartbeat(), client.lock(own.name):
        assert readers[0] == threading.get_ident()


@pytest.mark.usefixtures("alarms")
def test_a_leader_that_a_signal_interrupts_leaves_the_role_to_a_follower(
    client: Client, held: tuple[Lock, Lock]
) -> None:
    own, other = held
    followers = []

    def strike() -> None:
        followers.append(follow(client, other))
        os.kill(os.getpid(), signal.SIGUSR1)

    once_it_leads(client, own, strike)
    with pytest.raises(AlarmError):
        client.lock(own.name).acquire()
    until(lambda: leads(client, other.name), within=LONG, what="the follower leads")
    other.release()
    assert followers[0].has_it.wait(LONG)
    followers[0].join()
    assert client.statistics().waiting == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_a_leader_s_process_leaves_the_leader_alone(client: Client, held: tuple[Lock, Lock]) -> None:
    own, other = held
    waiting = Follower(client.lock(own.name))
    until(lambda: leads(client, own.name), within=LONG, what="the waiter leads")
    connections = [subscription._connection for subscription in client._session.hub.subscriptions]
    pid = os.fork()
    if pid == 0:
        try:
            is_free = client.lock(other.name).acquire(timeout=0.2)
            os._exit(1 if is_free else 0)
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    own.release()
    assert waiting.has_it.wait(LONG)
    assert [subscription._connection for subscription in client._session.hub.subscriptions] == connections, (
        "the parent's are as before"
    )
    waiting.join()
