"""Readers of the subscriptions: no message is lost, wherever an exception strikes the present or the next reader.

No thread of a subscription helps here: its later findings must not be needed. Each rule that keeps a message has a
control, in which it is switched off, and a message must then be lost.
"""

import errno
import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from types import CodeType
from typing import Any, cast

import pytest
from redis import exceptions as redis_errors
from support.instructions import Interrupt, Strike, is_of_relock
from support.scene import LONG, Line, Scene, until

from relock._keys import lock_keys
from relock._runtime.machine import THREADS, Machine
from relock._runtime.wakeups.shared_subscriptions import (
    BUSY_SECONDS,
    DOZE_SECONDS,
    STUCK_SECONDS,
    VACANT_SECONDS,
    SharedSubscriptions,
)
from relock._runtime.wakeups.subscribed_connection import TRIES_MAX, SubscribedConnection
from relock._runtime.wakeups.waiter import Waiter

LOST_SECONDS = 0.2  # after which a message is lost: only in a control


class Unlooked:
    """A queue that seems empty at the first looks."""

    def __init__(self, inner: "SimpleQueue[Any]") -> None:
        self.get, self.get_nowait, self.put = inner.get, inner.get_nowait, inner.put
        self._looks = iter([True] * 3)
        self._inner = inner

    def empty(self) -> bool:
        return next(self._looks, False) or self._inner.empty()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.end()


def counts(code: CodeType) -> bool:
    """Return whether an exception may strike in this function; Python swallows exceptions in a finalizer."""
    return code in MISTAKEN or (is_of_relock(code) and code.co_qualname not in ("Waker.__del__", "Waker.close"))


def leave_at_last(scene: Scene, waiter: Waiter) -> None:
    """Forget the waiter, as a call does that an exception has left: see `Hub.forget`."""
    scene.waiters.pop(waiter.owner)
    scene.shared.leave(waiter)


def strike_at(
    number: int, messages: Sequence[str], *, again: int | None = None, ends: bool = False
) -> tuple[Scene, Strike]:
    """Strike a leading thread at an instruction, while a follower waits; and again in its clean-up, if asked.

    The messages have come by then, at once, or one after the other.
    """
    scene = Scene()
    own = scene.waiter("own")
    scene.shared._parked[own] = None  # the only waiter with which the leader shares
    scene.shared._wakers.setdefault("leader", THREADS.waker())
    scene.shared._shared[scene.connection] = None
    scene.shared.wanted = object()
    assert scene.shared._role.setdefault("leader", own) is own
    scene.sleeps("other")
    scene.shared._role.pop("leader")
    for message in messages:
        scene.line.say(message)
    if ends:
        scene.line.theirs.close()
        own.wake(0)  # wakes it with nothing to hear; below, it looks at the socket first
        own.wakes = Unlooked(cast("SimpleQueue[Any]", own.wakes))
    strike = Strike(number, counts)
    try:
        with strike:
            scene.sleep(own)
    except Interrupt:
        clean_up = Strike(again, counts)
        try:
            with clean_up:
                leave_at_last(scene, own)
        except Interrupt:
            leave_at_last(scene, scene.waiters.setdefault(b"own", own))
        if again is not None and not clean_up.where:
            strike.where = ""  # no further instruction
    return scene, strike


LEADERS = {
    "the follower's message, then its own": ("other own",),
    "its own, and then the follower's": ("own", "other"),
    "both at once": ("own other",),
}


def struck(play: Callable[[int], tuple[Scene, Strike]], least: int) -> Iterator[tuple[Scene, Strike]]:
    """Yield the scene and the strike of `play` at each instruction; there must be `least` or more."""
    number = 1
    while True:
        scene, strike = play(number)
        yield scene, strike
        scene.end()
        if not strike.where:
            break
        number += 1
    assert number >= least


@pytest.mark.parametrize("messages", LEADERS.values(), ids=LEADERS)
def test_no_message_is_lost_where_an_exception_strikes_the_leader(messages: Sequence[str]) -> None:
    given_up = set()
    for scene, strike in struck(partial(strike_at, messages=messages), 100):
        assert scene.has_heard("other"), f"an exception at {strike.where}"
        if scene.connection.error is not None:
            given_up.add(strike.where.partition(":")[0])
    assert given_up <= {"SubscribedConnection.act"}, "only a half-parsed message ends the connection"


def test_no_message_is_lost_where_another_exception_strikes_the_clean_up() -> None:
    """The first exception strikes a leader that is about to leave, by its own message."""
    messages = ("own", "other")
    leaving = [
        number
        for number, (_, strike) in enumerate(struck(partial(strike_at, messages=messages), 100), start=1)
        if strike.where.startswith(
            (
                "SharedSubscriptions.leave",
                "SharedSubscriptions._resign",
                "SharedSubscriptions._hand_on",
                "SubscribedConnection.act:",
            )
        )
    ]
    assert leaving
    for number in leaving[:: max(1, len(leaving) // 12)]:
        for scene, strike in struck(lambda again, number=number: strike_at(number, messages, again=again), 20):  # type: ignore[misc]
            assert scene.has_heard("other"), f"two exceptions, the first one at {strike.where}"


def promote(number: int | None) -> tuple[Scene, Strike]:
    """Let a leader leave, strike the follower that it makes the leader, and send a message for the next one."""
    scene = Scene()
    first = scene.sleeps("first")
    scene.share()
    until(lambda: scene.leads(first), what="the first one leads")
    own, strike = scene.waiter("own"), Strike(number, counts)
    is_over = threading.Event()

    def direct() -> None:
        until(lambda: own in scene.shared._parked or is_over.is_set(), what="the waiter sleeps")
        last = scene.sleeps("last")
        scene.line.say("first")
        until(lambda: not scene.leads(first), what="the first one has left")
        until(lambda: scene.leads(own) or scene.leads(last) or is_over.is_set(), what="another one leads")
        scene.line.say("last")
        until(lambda: scene.has_heard("last"), what="the last one has heard")
        scene.line.say("own")

    director = threading.Thread(target=direct)
    director.start()
    try:
        with strike:
            scene.sleep(own)
    except Interrupt:
        leave_at_last(scene, own)
    is_over.set()
    director.join()
    return scene, strike


def test_no_message_is_lost_where_an_exception_strikes_the_next_leader() -> None:
    for scene, strike in struck(promote, 100):
        assert "last" in scene.heard or scene.connection.error is not None, (
            f"no message is lost after an exception at {strike.where}"
        )


# Controls -------------------------------------------------------------------------------------------------------------


def _store_later(self: SubscribedConnection) -> None:
    taken = cast("Any", self.channel.take_now)()
    self._taken.append(taken)
    self.heard += 1
    self.act()


def _forget_first(self: SubscribedConnection) -> None:
    while self._taken:
        self._replies.extend(self.channel.parse(self._taken.popleft()))
    while self._replies:
        reply = self._replies.popleft()
        self._act_on(reply)


def _leave_alone(self: SharedSubscriptions, waiter: Waiter) -> None:
    self._parked.pop(waiter, None)
    self._role.pop("leader", None)


def _keep_the_role(self: SharedSubscriptions, waiter: Waiter) -> None:
    self._parked.pop(waiter, None)


CONTROLS: dict[str, tuple[type, str, Any]] = {
    "it is stored in another step than it is received in": (SubscribedConnection, "hear_now", _store_later),
    "it is forgotten before it is acted on": (SubscribedConnection, "act", _forget_first),
    "the next leader does not act on what the last one has left": (SubscribedConnection, "has_unhandled", False),
    "a leader makes nobody the next one": (SharedSubscriptions, "leave", _leave_alone),
    "a leader that leaves keeps the role": (SharedSubscriptions, "leave", _keep_the_role),
}


MISTAKEN = {_store_later.__code__, _forget_first.__code__, _leave_alone.__code__, _keep_the_role.__code__}


@pytest.mark.parametrize("bug", CONTROLS.values(), ids=CONTROLS)
def test_control_a_message_is_lost_without_a_rule(bug: tuple[type, str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead = bug
    monkeypatch.setattr(where, name, instead)
    for scene, _ in struck(partial(strike_at, messages=("own other",)), 0):
        if not scene.has_heard("other", within=LOST_SECONDS):
            scene.end()
            return
    pytest.fail("no message was lost")


# Other ways to leave --------------------------------------------------------------------------------------------------


def test_a_leader_whose_time_is_over_makes_another_one_lead(scene: Scene) -> None:
    own = scene.waiter("own")
    scene.shared._parked[own] = None
    scene.share()
    with pytest.raises(Empty):
        scene.shared.next_for(own, scene.shared.clock())
    other = scene.sleeps("other")
    scene.shared.leave(own)
    until(lambda: scene.leads(other), what="the other one leads")
    scene.line.say("other")
    assert scene.has_heard("other")


def test_a_message_that_strikes_whoever_acts_on_it_costs_the_connection_and_not_every_waiter(scene: Scene) -> None:
    def fail(_: bytes) -> None:
        raise ValueError("a mistake")

    connection = SubscribedConnection(scene.line, fail, lambda: None)
    scene.line.say("any")
    with pytest.raises(ValueError, match="a mistake"):
        connection.hear(cast("Any", scene.line.take_now))
    for _ in range(TRIES_MAX - 1):
        with pytest.raises(ValueError, match="a mistake"):
            connection.act()
    with pytest.raises(redis_errors.ConnectionError, match="each try to act on a message failed: b'any'"):
        connection.act()


def test_what_was_shared_while_the_leader_saw_nothing_to_read_has_a_leader(scene: Scene) -> None:
    """A socket is shared after the leader has looked, and before it lets the role go."""

    class Role(dict[str, object]):
        def pop(self, *args: Any) -> Any:
            if scene.connection not in scene.shared._shared:
                scene.shared.share(scene.connection)
            return super().pop(*args)

    own = scene.waiter("own")
    scene.shared._role = Role(leader=own)
    scene.line.say("own")
    assert scene.shared.next_for(own, scene.shared.clock() + LONG) == 0


def test_a_leader_that_stands_still_is_deposed_and_reads_nothing_any_more(scene: Scene) -> None:
    """Leaders may act on a message for long; meanwhile the others get theirs on another connection."""
    begun, go_on = threading.Event(), threading.Event()
    act_on = scene.act_on

    def stand_still(name: bytes) -> None:
        if name == b"slow":
            begun.set()
            go_on.wait(LONG)
        act_on(name)

    scene.act_on = stand_still  # type: ignore[method-assign]
    old = scene.connection = scene.listen(scene.line)
    first = scene.sleeps("first")
    scene.share()
    until(lambda: scene.leads(first), what="the waiter leads")
    scene.line.say("slow")
    begun.wait(LONG)
    other = scene.sleeps("other")
    assert not scene.leads(other)
    scene.shared.depose(old, redis_errors.TimeoutError("it stands still"))
    assert old.error is not None
    line = scene.another_line()
    scene.connection = scene.listen(line)
    scene.share()
    until(lambda: scene.leads(other), what="another one leads")
    line.say("other")
    assert scene.has_heard("other")
    scene.line.say("nobody")
    go_on.set()
    until(lambda: scene.leads(first), what="the first leads again, as the only waiter")
    line.say("first")
    assert scene.has_heard("first")
    assert scene.line.ours.recv(64) == b"nobody\n", "the deposed leader has not read the old connection's bytes"


def test_a_socket_is_taken_back_only_where_nobody_leads(scene: Scene) -> None:
    first = scene.sleeps("first")
    scene.share()
    until(lambda: scene.leads(first), what="the waiter leads")
    scene.shared.left_at = float("-inf")
    assert not scene.shared.take_back(scene.connection)
    scene.line.say("first")
    until(lambda: not scene.leads(first), what="the first has left")
    assert not scene.shared.take_back(scene.connection), "the next waiter may come in a moment"
    scene.shared.gave_up()
    assert scene.shared.take_back(scene.connection), "the subscription is taken back when no waiter is left"
    assert scene.connection not in scene.shared._shared


def test_a_leader_that_is_deposed_in_its_poll_is_woken_as_a_follower(scene: Scene) -> None:
    """Python begins a poll again when a handler has returned, perhaps on another connection of the same number."""
    first = scene.sleeps("first")
    scene.share()
    until(lambda: first.is_polling, what="the first polls")
    scene.shared.depose(scene.connection, redis_errors.TimeoutError("it stands still"))
    line = scene.another_line()
    scene.connection = scene.listen(line)
    until(lambda: first in scene.shared._parked, what="the first goes on")
    scene.share()
    until(lambda: scene.leads(first), what="the first leads again, as the only waiter")
    line.say("first")
    assert scene.has_heard("first")


def test_the_poll_of_a_deposed_leader_has_a_pipe_that_nobody_clears(scene: Scene) -> None:
    """Leaders go on when their handler returns, perhaps after the next leader has cleared a pipe that both share."""
    scene.shared._role["leader"] = scene.waiter("first")
    scene.shared._parked[scene.waiter("next")] = None
    scene.share()
    poll_set = scene.shared._gather()
    scene.shared.depose(scene.connection, redis_errors.TimeoutError("it stands still"))
    scene.connection = scene.listen(scene.another_line())
    scene.share()
    scene.shared._wakers["leader"].clear()
    assert poll_set.waker is not None
    assert poll_set.waker.fileno in [fileno for fileno, _ in poll_set.poll(0.0)]


def test_a_leader_that_is_deposed_before_it_reads_acts_on_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, acted = scene.waiter("own"), list[Any]()
    scene.shared._parked[own] = None
    scene.share()
    gather = scene.shared._gather

    def stand_still() -> Any:
        monkeypatch.setattr(scene.shared, "_gather", gather)
        scene.shared.depose(scene.connection, redis_errors.TimeoutError("it stands still"))
        other = SubscribedConnection(scene.another_line(), acted.append, lambda: None)
        other._replies.append("for another one")
        scene.shared._parked[own] = None
        scene.shared.share(other)
        return gather()

    monkeypatch.setattr(scene.shared, "_gather", stand_still)
    assert not scene.shared._lead(own, scene.shared.clock() + LONG)
    assert acted == []


def test_a_socket_that_was_given_up_is_not_taken_back(scene: Scene) -> None:
    scene.shared._parked[scene.waiter("own")] = None
    scene.share()
    other = SubscribedConnection(scene.another_line(), print, lambda: None)
    scene.shared.share(other)
    scene.shared.depose(scene.connection, redis_errors.TimeoutError("it stands still"))
    scene.shared.left_at = float("-inf")
    assert other.error is not None
    assert not scene.shared.take_back(other)
    assert scene.shared._role == {}


def test_a_leader_with_nothing_to_read_lets_the_role_go_before_it_sleeps(scene: Scene) -> None:
    own = scene.waiter("own")
    scene.shared._role["leader"] = own
    with pytest.raises(Empty):
        scene.shared.next_for(own, scene.shared.clock())
    assert scene.shared._role == {}


def test_threads_that_doze_look_when_a_leader_leaves_also_where_another_one_follows(scene: Scene) -> None:
    """The follower may stand still."""
    called: list[str] = []
    scene.shared._dozing[SubscribedConnection(scene.line, print, lambda: called.append("called"))] = None
    scene.sleeps("other")
    scene.shared._hand_on()
    assert called == ["called"]


def test_a_connection_that_ends_is_given_up_or_still_read_wherever_an_exception_strikes() -> None:
    for scene, strike in struck(partial(strike_at, messages=(), ends=True), 100):
        assert scene.connection.error is not None or scene.connection in scene.shared._shared, (
            f"an exception at {strike.where}"
        )


def test_a_handler_s_error_of_the_system_is_no_error_of_the_connection(scene: Scene) -> None:
    def fail(_: bytes) -> None:
        raise TimeoutError(110, "too late")

    connection = SubscribedConnection(scene.line, fail, lambda: None)
    scene.line.say("any")
    with pytest.raises(TimeoutError, match="too late"):
        scene.shared._try(connection, connection.hear_now)
    assert connection.error is None


def test_a_pipe_goes_with_its_client_and_not_only_with_the_garbage(scene: Scene) -> None:
    own = scene.waiter("own")
    scene.shared._parked[own] = None
    scene.share()
    scene.line.say("own")
    assert scene.shared.next_for(own, scene.shared.clock() + LONG) == 0
    scene.shared.leave(own)
    number = scene.shared._wakers["leader"].fileno
    os.fstat(number)
    gc.disable()
    try:
        scene.shared.stop()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
    finally:
        gc.enable()


def test_a_child_closes_its_copy_of_the_pipe(scene: Scene) -> None:
    scene.shared._parked[scene.waiter("own")] = None
    scene.share()
    waker = scene.shared._wakers["leader"]
    scene.shared.abandon()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(waker.fileno)


def test_nothing_is_shared_where_too_many_files_are_open() -> None:
    """A leader could not be woken, so the thread of the subscription goes on reading."""

    class Full(Machine):
        def waker(self) -> Any:
            raise OSError(errno.EMFILE, "too many open files")

    reading, line = SharedSubscriptions(Full()), Line()
    reading._parked[Waiter(b"own", lock_keys("lock", "any"), SimpleQueue(), reading)] = None
    connection = SubscribedConnection(line, print, lambda: None)
    reading.share(connection)
    assert not connection.is_led
    assert not reading._shared
    line.close()


class Naps:
    """The queue of a subscription's thread, which notes for how long the thread sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def get(self, timeout: float) -> None:
        self.slept.append(timeout)
        raise Empty


@pytest.mark.parametrize(
    ("left_before", "is_read", "is_unread", "seconds"),
    [
        (0.0, False, False, VACANT_SECONDS),
        (0.0, True, False, BUSY_SECONDS),
        (0.0, False, True, VACANT_SECONDS),
        (2 * DOZE_SECONDS, False, False, DOZE_SECONDS),
        (2 * DOZE_SECONDS, True, False, DOZE_SECONDS),
        (2 * DOZE_SECONDS, False, True, VACANT_SECONDS),
    ],
)
def test_how_long_the_thread_of_a_shared_subscription_sleeps(
    left_before: float, is_read: bool, is_unread: bool, seconds: float, scene: Scene
) -> None:
    """The page on concurrency has the sums of these: of a vacant role, and of a leader that stands still."""
    naps = Naps()
    scene.shared._role["leader"] = scene.waiter("own")
    scene.shared.left_at = scene.shared.clock() - left_before
    scene.shared.nap(scene.connection, cast("Any", naps), is_read=is_read, is_unread=is_unread)
    assert naps.slept == [seconds]
    assert scene.shared._dozing == {}
    assert BUSY_SECONDS + VACANT_SECONDS <= 0.3
    assert 2 * DOZE_SECONDS + STUCK_SECONDS + 2 * VACANT_SECONDS <= 3.1


def test_a_thread_does_not_doze_where_nobody_leads(scene: Scene) -> None:
    naps = Naps()
    scene.shared.nap(scene.connection, cast("Any", naps), is_read=False, is_unread=False)
    assert naps.slept == []
