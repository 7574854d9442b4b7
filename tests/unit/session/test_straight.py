"""The usual case goes the short way; whatever a master replies, that has the same outcome as the general way.

Each case plays a call in three ways, on a lone master with made-up replies: as it is; in the general way, as for
several masters; and so that a parser reads every reply. The outcome, all that the client knows afterwards, and every
byte that it sent must be the same.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from queue import Empty
from typing import Any, cast

import pytest
from attrs import Factory, define
from redis import exceptions as redis_errors

from relock import Client, Lock, RelockError
from relock._core import calls
from relock._core.call_record import Step
from relock._core.calls import Calls
from relock._core.effects import Answer, Ask
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec
from relock._core.waiting import Wait, ask_until_granted
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._runtime.machine import Machine
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.fan_out import FanOut
from relock._runtime.net.channel import Channel
from relock._runtime.net.node import Node
from relock._runtime.session.session import Session
from relock._scripts import TOKEN_MAX, Script, load, script_names

hiredis: Any = pytest.importorskip("hiredis", reason="without it, every reply goes to the parser of redis-py")
Deed = Callable[[Lock], Any]
STRAIGHT, FANNED_OUT, PARSED = WAYS = "straight", "fanned out", "parsed"
NAMES = {load(name).sha.encode(): name for name in script_names()}
AHEAD_SECONDS = 1_700_000_000.0  # of the master's clock, ahead of ours
TRIP_SECONDS = 0.001
PATIENCE_SECONDS = 20.0  # of a caller that waits
REPLICATION = b"role:master\r\nmaster_replid:repl\r\n"


class Silence:
    """Stands for a reply that does not come in time."""


@define
class Scene:
    """A master that replies as the test tells it to, and moves the clock itself.

    Attributes:
        said: the replies to the next requests: bytes, a function that makes them, several of them, an error, silence.
        sent: every request since the connection was opened.
        published: the messages, of which one comes whenever the client sleeps.
        run_id: the identity of the server that a new connection finds.
    """

    said: list[Any] = Factory(list)
    sent: list[bytes] = Factory(list)
    now: float = 50.0
    run_id: bytes = b"run"
    move: Callable[[bytes], object] = repr
    marker: bytes | None = None
    published: list[Callable[["Scene"], bytes]] = Factory(list)
    hear: Callable[[int, bytes], object] = print

    waiters: dict[bytes, Any] = Factory(dict)
    subscription: Any = None

    def grant(self, *, token: int = 0, age: float = 0.0, lease_ms: int = 3000, name: bytes = b"a") -> bytes:
        """Return a releaser's message that has given the lock to the only waiter, `age` seconds ago."""
        owner = next(iter(self.waiters), b"c:nobody").partition(b":")[2]
        us = self.clock_us() - int(age * 1e6)
        return b"grant %b %b.%d %d %d %d %b:repl a" % (owner, name * 16, us, token or us, us, lease_ms, self.run_id)

    def lose_subscription(self) -> bytes:
        """Break the subscription for good, which wakes the waiter."""
        self.subscription.is_confirmed = False
        return self.wake()

    def wake(self) -> bytes:
        """Return a script's message to the only waiter that has its turn."""
        return b"wake %b a" % next(iter(self.waiters), b"c:nobody").partition(b":")[2]

    def clock_us(self) -> int:
        return int((self.now + AHEAD_SECONDS) * 1e6)

    def answer(self, packed: bytes) -> list[Any]:
        """Return the reply to a request, in the pieces in which it arrives."""
        self.sent.append(packed)
        said = self.said.pop(0) if self.said else self.right(packed)
        pieces = said if isinstance(said, list) else [said]
        return [piece() if callable(piece) and not isinstance(piece, type) else piece for piece in pieces]

    def right(self, packed: bytes) -> bytes:
        """Return the reply of a sound master."""
        name = next(name for sha, name in NAMES.items() if sha in packed or load(name).source in packed)
        if name == "acquire":
            return words(b"granted", self.clock_us(), self.clock_us())
        if name == "enqueue":
            return array(b"granted", self.clock_us(), self.clock_us())
        if name in ("leave", "give_back"):
            return words({"leave": b"left", "give_back": b"released"}[name], self.clock_us())
        usual = {"release": b"released", "count": b"counted", "extend": b"extended"}[name]
        return words(usual, self.clock_us())


def words(*parts: bytes | int) -> bytes:
    text = b" ".join(part if isinstance(part, bytes) else b"%d" % part for part in parts)
    return b"$%d\r\n%b\r\n" % (len(text), text)


def array(*parts: bytes | int) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) if isinstance(part, bytes) else b":%d\r\n" % part for part in parts
    )


class ScriptedChannel(Channel):
    """Bytes from the scene, parsed as those of a socket are."""

    fileno = -1

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._pieces: list[Any] = []
        self._reader = hiredis.Reader(replyError=redis_errors.ResponseError)
        self.send = self._send
        self.ready = self._ready
        self.take = self._take
        self.has_part = self._reader.has_data

    def _send(self, packed: bytes) -> None:
        self._pieces += self._scene.answer(packed)
        if self._pieces and isinstance(self._pieces[0], ConnectionResetError):
            raise self._pieces.pop(0)

    def _ready(self, milliseconds: float) -> bool:
        if self._pieces and self._pieces[0] is not Silence:
            return True
        del self._pieces[:1]
        self._scene.now += milliseconds / 1000
        return False

    def _take(self) -> bytes:
        self._scene.now += TRIP_SECONDS
        piece = self._pieces.pop(0)
        if isinstance(piece, BaseException):
            raise piece
        return bytes(piece)

    def parse(self, taken: bytes) -> list[Any]:
        if not taken:
            raise redis_errors.ConnectionError("the server closed the connection")
        self._reader.feed(taken)
        replies = []
        try:
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
        except hiredis.ProtocolError as error:
            raise redis_errors.InvalidResponse(str(error)) from None
        return replies


class ScriptedWire:
    """A connection that opens at once."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._replies: Iterator[Any] = iter(())

    def connect(self) -> None:
        """Do nothing."""

    def disconnect(self) -> None:
        """Do nothing."""

    def pack_commands(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return list(commands)

    def send_packed_command(self, command: Sequence[Any], check_health: bool = True) -> None:  # noqa: ARG002
        seconds, micros = divmod(self.scene.clock_us(), 1_000_000)
        said = {
            ("INFO", "server"): b"redis_version:7.0\r\nrun_id:%b\r\n" % self.scene.run_id,
            ("INFO", "replication"): REPLICATION,
            ("INFO", "memory"): b"maxmemory_policy:noeviction\r\n",
            ("TIME",): [b"%d" % seconds, b"%d" % micros],
        }
        self._replies = iter([said.get(tuple(words), [self.scene.marker]) for words in command])

    def can_read(self, timeout: float) -> bool:  # noqa: ARG002
        return True

    def read_response(self, *, disconnect_on_error: bool = True) -> Any:  # noqa: ARG002
        return next(self._replies)


class ScriptedQueue:
    """A queue into which no other thread puts anything, so that a wait for a message is in vain."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        self._items.append(item)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def get_nowait(self) -> Any:
        return self._items.pop(0)

    def get(self, timeout: float) -> Any:
        if not self._items and self._scene.published:
            self._scene.hear(0, self._scene.published.pop(0)(self._scene))
        if not self._items:
            self._scene.now += timeout
            raise Empty
        return self._items.pop(0)


class ScriptedMachine(Machine):
    """One thread, the scene's clock, and names that repeat."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.drawn = 0
        self.started: list[str] = []
        self.clock = lambda: scene.now
        self.sleep = self._sleep
        self.chance = lambda: 0.5
        self.queue = lambda: ScriptedQueue(scene)  # type: ignore[assignment,return-value]
        self.open_channel = lambda _raw, _timeout: ScriptedChannel(scene)

    def _sleep(self, seconds: float) -> None:
        self.scene.now += seconds

    def random_hex(self, count: int) -> str:
        self.drawn += 1
        return f"{self.drawn:0{2 * count}x}"

    def start(self, target: Callable[[], object], name: str) -> None:  # noqa: ARG002
        self.started.append(name)


@define
class Home:
    """The part of a client that a lock needs."""

    _session: Session
    options: ClientOptions

    def lock(self, name: str) -> Lock:
        options = self.options.for_lock()
        spec = LockSpec.of(lock_keys("lock", name), ("redis://a",), options, self.options)
        return Lock(cast("Client", self), spec, spec.keys.name)


@define
class Play:
    """One call, played in one of the ways."""

    scene: Scene
    client: Home
    lock: Lock
    handed: list[Any] = Factory(list)
    told: list[str] = Factory(list)

    def do(self, call: Deed) -> None:
        try:
            self.told.append(repr(call(self.lock)))
        except (RelockError, redis_errors.RedisError, OSError) as error:
            self.told.append(f"{type(error).__name__}: {error}")

    def state(self) -> dict[str, Any]:
        """Return all that the client knows by now."""
        session = self.client._session
        (master,) = session.masters
        assert isinstance(session.platform, ScriptedMachine)
        return {
            "told": self.told,
            "sent": self.scene.sent,
            "now": round(self.scene.now, 4),
            "holds": [hold_state(hold) for hold in session.holds.values()],
            "counters": repr([getattr(session.counters, name) for name in ("grants", "refusals", "waits", "losses")]),
            "handed": [_without_moments(task) for task in self.handed],
            "waiting": list(session.hub.waiters),
            "served": list(session.hub._served),
            "beats_at": session.janitor._asked_for,
            "idle": [link_state(connection) for connection in master.pool._idle],
            "open": master.pool.connections,
            "down": master.facts.down,
            "vote_at": master.facts.vote_at,
            "trusted_from": master.facts.trusted_from,
            "incarnation": master.facts.incarnation,
            "clock": [
                getattr(master.facts.offset, name) for name in ("low", "high", "seen_at", "stepped_at", "_rivals")
            ],
            "watch_at": session.watchdog._pokes.qsize(),
            "started": set(session.platform.started),  # without repetitions, because here no thread runs
            "pending_warnings": list(session.pending_warnings),
        }


def hold_state(hold: Hold) -> dict[str, Any]:
    """Return everything in a hold that has a value to compare."""
    plain = (int, float, str, bytes, bool, type(None), list, set, dict)
    return {name: value for name in Hold.__slots__ if isinstance(value := getattr(hold, name), plain)}


def link_state(connection: Connection) -> list[Any]:
    return [
        connection.shown.is_retired,
        connection.shown.guard_ms,
        connection.shown.voted_us,
        len(connection.in_flight),
        connection.shown.incarnation,
    ]


def _without_moments(task: Any) -> str:
    return f"{type(task).__name__} {getattr(task, 'owner', '')!r}"


def found_nothing(*_: object) -> Generator[Step, Any, tuple[None, None, None]]:
    """Stand in for `Calls._queue` without a result: the wait loop goes on from there."""
    yield from ()
    return None, None, None


def play(call: Deed, said: Callable[[Scene], list[Any]], guard: float, way: str) -> Play:
    """Play `call` on a lock that was taken once before, to open its connection; then once more with sound replies."""
    with pytest.MonkeyPatch.context() as patch:
        if way == PARSED:
            patch.setattr(Script, "match_usual", lambda *_: None)
        if way == FANNED_OUT:
            patch.setattr(Calls, "_queue", found_nothing)
        return _play(call, said, guard, way)


def _play(call: Deed, said: Callable[[Scene], list[Any]], guard: float, way: str) -> Play:
    scene = Scene()
    platform = ScriptedMachine(scene)

    options = ClientOptions(ttl=10.0, node_timeout=0.5, patience=0.0, restart_guard=guard, client_name="c")
    session = Session([Node("redis://a", lambda **_: ScriptedWire(scene), {})], options, platform)
    client = Home(session, options)
    assert session.lone is not None
    if way != STRAIGHT:
        session.calls = Calls(session, session.interrupted, session.hub)
    made = Play(scene, client, client.lock("a"))
    session.janitor.hand = made.handed.append  # type: ignore[method-assign,assignment]
    session.janitor.look_later = made.handed.append  # type: ignore[method-assign,assignment]
    warm = client.lock("warm")
    warm.acquire()
    warm.release()
    scene.waiters, scene.subscription = session.hub.waiters, session.hub.subscriptions[0]
    scene.hear = lambda master, payload: session.hub.message(session.hub.subscriptions[master], payload)
    if call is queue:
        session.waited_at = scene.now
        session.hub.listen(made.lock._spec.keys, scene.now)
        session.hub.subscriptions[0].is_confirmed = True
        session.hub.subscriptions[0]._incarnation = session.masters[0].facts.incarnation
    for _ in range(LEVELS_BEFORE.get(call, 0)):
        made.lock.acquire()
    master = session.masters[0]
    scene.move = lambda incarnation: master.act(master.facts.see_incarnation(incarnation))
    scene.sent.clear()
    scene.said[:] = said(scene)
    made.do(call)
    scene.said.clear()
    made.do(lambda lock: lock.hold_count)
    made.do(lambda lock: lock.token)
    made.do(partial(Lock.acquire, blocking=False))
    made.do(Lock.release)
    return made


def try_lock(lock: Lock) -> bool:
    return lock.acquire(blocking=False)


def take(lock: Lock) -> bool:
    return lock.acquire()


def take_in_time(lock: Lock) -> bool:
    return lock.acquire(timeout=5)


def enter(lock: Lock) -> object:
    lock.__enter__()
    return None


def nest(lock: Lock) -> bool:
    return lock.acquire()


def leave_inner(lock: Lock) -> None:
    lock.release()


def leave(lock: Lock) -> None:
    lock.release()


def leave_block(lock: Lock) -> None:
    lock.__exit__(None, None, None)


LEVELS_BEFORE: dict[Deed, int] = {nest: 1, leave_inner: 2, leave: 1, leave_block: 1}
USUAL: dict[Deed, bytes] = {try_lock: b"granted", take: b"granted", take_in_time: b"granted", enter: b"granted"}
USUAL |= {nest: b"counted", leave_inner: b"counted", leave: b"released", leave_block: b"released"}


def usual(scene: Scene, call: Deed, ahead: float = 0.0, token: int | None = None) -> bytes:
    shown = scene.clock_us() + int(ahead * 1e6)
    return words(USUAL[call], shown, *([shown if token is None else token] if USUAL[call] == b"granted" else []))


def queue(lock: Lock) -> bool:
    """Queue by a client that has waited a moment ago, and so asks for a place at once."""
    return lock.acquire(timeout=PATIENCE_SECONDS)


Said = Callable[[Scene, Deed], list[Any]]
SAID: dict[str, Said] = {
    "as usual": lambda scene, call: [usual(scene, call)],
    "as usual, in two pieces": lambda scene, call: [[usual(scene, call)[:9], usual(scene, call)[9:]]],
    "as usual, byte by byte": lambda scene, call: [[bytes([byte]) for byte in usual(scene, call)]],
    "the usual one, inside another": lambda scene, call: [
        [b"$%d\r\n" % len(usual(scene, call)), usual(scene, call), b"\r\n"]
    ],
    "as usual, in an array": lambda scene, call: [
        array(USUAL[call], scene.clock_us(), *([scene.clock_us()] if USUAL[call] == b"granted" else []))
    ],
    "twice": lambda scene, call: [usual(scene, call) * 2],
    "and then something": lambda scene, call: [usual(scene, call) + b":1\r\n"],
    "a clock that went ahead": lambda scene, call: [usual(scene, call, ahead=5.0)],
    "a clock that was set back": lambda scene, call: [usual(scene, call, ahead=-5.0)],
    "a clock a little off": lambda scene, call: [usual(scene, call, ahead=0.01)],
    "a token of nothing": lambda scene, call: [usual(scene, call, token=0)],
    "the largest token": lambda scene, call: [usual(scene, call, token=TOKEN_MAX)],
    "too large a token": lambda scene, call: [usual(scene, call, token=TOKEN_MAX + 1)],
    "too late": lambda scene, call: [partial(_late, scene, call, 11.0)],
    "nearly too late": lambda scene, call: [partial(_late, scene, call, 0.4)],
    "another server, as another thread finds": lambda scene, call: [partial(_moved, scene, call, b"other:repl")],
    "a first replica, as another thread finds": lambda scene, call: [partial(_moved, scene, call, b"run:other")],
    "nothing": lambda _scene, _call: [[Silence, Silence, Silence, Silence]],
    "nothing, and then the reply": lambda scene, call: [[Silence, usual(scene, call)]],
    "refused": lambda scene, _call: [array(b"refused", scene.clock_us(), 5000, 0, b"you:1")],
    "refused, as others wait": lambda scene, _call: [array(b"refused", scene.clock_us(), 0, 3, b"")],
    "refused, for a holder that is called as the usual reply": lambda scene, call: [
        [array(b"refused", scene.clock_us(), 5000, 0, b"").removesuffix(b"$0\r\n\r\n"), usual(scene, call)]
    ],
    "void": lambda scene, _call: [words(b"void", scene.clock_us())],
    "void, three times": lambda scene, _call: [words(b"void", scene.clock_us())] * 3,
    "absent": lambda scene, _call: [words(b"absent", scene.clock_us())],
    "no vote": lambda scene, _call: [array(b"no_vote", scene.clock_us(), scene.clock_us() + 5_000_000)],
    "no such script": lambda _scene, _call: [b"-NOSCRIPT No matching script.\r\n"],
    "no such script, twice": lambda _scene, _call: [b"-NOSCRIPT No matching script.\r\n"] * 2,
    "a replica": lambda _scene, _call: [b"-READONLY You can't write against a read only replica.\r\n"],
    "out of memory": lambda _scene, _call: [b"-OOM command not allowed\r\n"],
    "busy": lambda _scene, _call: [b"-BUSY Redis is busy running a script.\r\n"],
    "no right": lambda _scene, _call: [b"-NOPERM this user has no permissions\r\n"],
    "the end": lambda _scene, _call: [b""],
    "a reset": lambda _scene, _call: [ConnectionResetError()],
    "a reset, later": lambda _scene, _call: [[OSError("gone")]],
    "a status of its own": lambda scene, _call: [words(b"perhaps", scene.clock_us())],
    "a status without a clock": lambda _scene, call: [words(USUAL[call])],
    "no number": lambda _scene, call: [words(USUAL[call], b"soon", b"one")],
    "a negative number": lambda _scene, call: [words(USUAL[call], -1, -1)],
    "one word too many": lambda scene, call: [words(USUAL[call], scene.clock_us(), scene.clock_us(), 1)],
    "another script's words": lambda scene, _call: [words(b"extended", scene.clock_us())],
    "a length that is wrong": lambda scene, call: [usual(scene, call).replace(b"$", b"$1", 1), b"\r\n"],
    "a number": lambda _scene, _call: [b":1\r\n"],
    "null": lambda _scene, _call: [b"$-1\r\n"],
    "nonsense": lambda _scene, _call: [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
}


def _moved(scene: Scene, call: Deed, incarnation: bytes) -> bytes:
    scene.move(incarnation)
    return usual(scene, call)


def _late(scene: Scene, call: Deed, seconds: float) -> bytes:
    said = usual(scene, call)
    scene.now += seconds
    return said


@pytest.mark.parametrize("guard", [0.0, 30.0], ids=["no guard", "guard"])
@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("call", USUAL, ids=lambda call: str(call.__name__))
def test_the_straight_way_comes_to_what_the_general_one_does(call: Deed, said: str, guard: float) -> None:
    if said.startswith("refused") and call in (take, take_in_time):
        pytest.skip("the call would wait, which is the general way")
    say = partial(_say, SAID[said], call)
    straight, fanned_out, parsed = (play(call, say, guard, way).state() for way in WAYS)
    assert straight == parsed
    assert fanned_out == parsed


def behind(scene: Scene, ahead: int = 0, left_ms: int = 9000, holder: bytes = b"you:1") -> bytes:
    """Return the reply to an enqueue: a place behind another waiter or holder."""
    return words(b"queued", scene.clock_us(), left_ms, ahead, holder, scene.clock_us())


Queued = Callable[[Scene], tuple[list[Any], list[Callable[[Scene], bytes]]]]
QUEUED: dict[str, Queued] = {
    "given": lambda scene: ([behind(scene)], [Scene.grant]),
    "given, behind others": lambda scene: ([behind(scene, ahead=3)], [Scene.grant]),
    "given, after a lease without an end": lambda scene: ([behind(scene, left_ms=-1)], [Scene.grant]),
    "given, with a lease as long as the lock's": lambda scene: (
        [behind(scene)],
        [partial(Scene.grant, lease_ms=10_000)],
    ),
    "given, by a clock that is off": lambda scene: ([behind(scene)], [partial(Scene.grant, age=-1.0)]),
    "given a moment ago": lambda scene: ([behind(scene)], [partial(Scene.grant, age=0.5)]),
    "given, and nearly over": lambda scene: ([behind(scene)], [partial(Scene.grant, age=2.96)]),
    "given too long ago": lambda scene: ([behind(scene)], [partial(Scene.grant, age=5.0)]),
    "given too long ago, and then again": lambda scene: (
        [behind(scene), words(b"released", scene.clock_us()), behind(scene)],
        [partial(Scene.grant, age=5.0), partial(Scene.grant, name=b"b")],
    ),
    "given with the largest token": lambda scene: ([behind(scene)], [partial(Scene.grant, token=TOKEN_MAX)]),
    "given with too large a token": lambda scene: ([behind(scene)], [partial(Scene.grant, token=TOKEN_MAX + 1)]),
    "given under two names at once": lambda scene: ([behind(scene)], [_give_twice]),
    "given under two names at once, one of them too long ago": lambda scene: (
        [behind(scene), words(b"released", scene.clock_us())],
        [partial(_give_twice, age=5.0)],
    ),
    "woken, and granted": lambda scene: ([behind(scene)], [Scene.wake]),
    "woken, and still behind": lambda scene: ([behind(scene), behind(scene)], [Scene.wake, Scene.grant]),
    "the holder's lease is over": lambda scene: ([behind(scene, left_ms=300)], []),
    "nobody has it, and others are first": lambda scene: ([behind(scene, left_ms=0, holder=b"")], []),
    "it has it itself": lambda scene: ([partial(_behind_itself, scene)], [Scene.grant]),
    "nothing comes": lambda scene: ([behind(scene, ahead=1, left_ms=-1)] * 2, []),
    "nothing comes, but at the last look": lambda scene: ([behind(scene, ahead=1, left_ms=-1)], []),
    "its subscription breaks while it sleeps": lambda scene: (
        [behind(scene, ahead=1, left_ms=-1)] * 2,
        [Scene.lose_subscription],
    ),
    "its subscription breaks, and what was given is too old": lambda scene: (
        [behind(scene), words(b"released", scene.clock_us()), *[behind(scene)] * 2],
        [Scene.lose_subscription, partial(Scene.grant, age=5.0)],
    ),
    "nothing comes, and it has no place": lambda scene: (
        [behind(scene, ahead=1, left_ms=-1)] * 2 + [words(b"absent", scene.clock_us())],
        [],
    ),
    "granted at once": lambda scene: ([array(b"granted", scene.clock_us(), scene.clock_us())], []),
    "a place in two pieces": lambda scene: ([[behind(scene)[:20], behind(scene)[20:]]], [Scene.grant]),
    "a place behind a name with blanks": lambda scene: ([behind(scene, holder=b" you 1 ")], [Scene.grant]),
    "a place behind a name that looks like a place, and is cut in two": lambda scene: (
        [_cut(behind(scene, holder=b"you 1700000050000000\r\n"), behind=b"0000\r\n")],
        [Scene.grant],
    ),
    "a place, and then something": lambda scene: ([behind(scene) + b":1\r\n"], [Scene.grant]),
    "a clock that went ahead": lambda scene: (
        [words(b"queued", scene.clock_us() + 5_000_000, 9000, 0, b"you:1", scene.clock_us())],
        [Scene.grant],
    ),
    "no place": lambda scene: ([words(b"queued", scene.clock_us(), 9000, 0, b"you:1")], []),
    "void": lambda scene: ([array(b"void", scene.clock_us()), behind(scene)], [Scene.grant]),
    "no vote": lambda scene: ([array(b"no_vote", scene.clock_us(), scene.clock_us() + 100_000)], []),
    "nothing": lambda _scene: ([[Silence, Silence]], []),
    "no such script": lambda scene: ([b"-NOSCRIPT No matching script.\r\n", behind(scene)], [Scene.grant]),
    "a replica": lambda _scene: ([b"-READONLY You can't write against a read only replica.\r\n"], []),
    "out of memory": lambda _scene: ([b"-OOM command not allowed\r\n"], []),
    "no right": lambda _scene: ([b"-NOPERM this user has no permissions\r\n"], []),
    "the end": lambda _scene: ([b""], []),
    "a reset": lambda _scene: ([ConnectionResetError()], []),
    "nonsense": lambda _scene: ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], []),
}


def _cut(reply: bytes, *, behind: bytes) -> list[bytes]:
    """Return a reply in two pieces."""
    first, found, rest = reply.partition(behind)
    return [first + found, rest]


def _give_twice(scene: Scene, age: float = 1.0) -> bytes:
    scene.hear(0, scene.grant(name=b"b", age=age))
    return scene.grant()


def _behind_itself(scene: Scene) -> bytes:
    return behind(scene, holder=next(iter(scene.waiters)) + b"~" + b"a" * 16)


@pytest.mark.parametrize("guard", [0.0, 30.0], ids=["no guard", "guard"])
@pytest.mark.parametrize("said", QUEUED)
def test_a_straight_wait_comes_to_what_the_general_one_does(said: str, guard: float) -> None:
    def say(scene: Scene) -> list[Any]:
        replies, scene.published[:] = QUEUED[said](scene)
        return replies

    straight, fanned_out, parsed = (play(queue, say, guard, way).state() for way in WAYS)
    assert straight == parsed
    assert fanned_out == parsed


def test_the_usual_wait_goes_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests above therefore do not compare one way with itself."""
    waits = list[Wait]()

    def note(wait: Wait, *found: Any) -> Any:
        waits.append(wait)
        return ask_until_granted(wait, *found)

    def say(scene: Scene) -> list[Any]:
        replies, scene.published[:] = QUEUED["given"](scene)
        return replies

    monkeypatch.setattr(calls, "ask_until_granted", note)
    made = play(queue, say, 0.0, STRAIGHT)
    assert made.told[:2] == ["True", "1"]
    assert not waits
    play(queue, say, 0.0, FANNED_OUT)
    assert len(waits) == 1


def _say(said: Said, call: Deed, scene: Scene) -> list[Any]:
    return said(scene, call)


@pytest.mark.parametrize("way", WAYS)
def test_a_parser_reads_what_is_not_the_usual_case(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the other cases therefore really compare three ways."""
    parsed, parse = list[bytes](), ScriptedChannel.parse

    def note(channel: ScriptedChannel, taken: bytes) -> list[Any]:
        parsed.append(taken)
        return parse(channel, taken)

    monkeypatch.setattr(ScriptedChannel, "parse", note)
    play(take, lambda scene: [usual(scene, take)], 0.0, way)
    assert bool(parsed) == (way == PARSED)


@pytest.mark.parametrize("call", USUAL, ids=lambda call: str(call.__name__))
def test_the_usual_case_goes_straight(call: Deed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the other cases therefore do not compare one way with itself."""
    asked, ask_all = list[str](), FanOut.ask

    def note(rounds: FanOut, ask: Ask, **options: bool) -> list[Answer]:
        asked.append(ask.calls[0].script.name)
        return ask_all(rounds, ask, **options)

    monkeypatch.setattr(FanOut, "ask", note)
    play(call, lambda _scene: [], 0.0, STRAIGHT)
    assert asked == ["acquire"], "only the first acquire, which opens the connection, goes the general way"
