"""Watch of a thread's steps: a platform that tells the test each time the thread asks something of the platform.

Between two such moments relock's own code waits for nothing, so the effect of another thread shows no earlier than at
the next step. Whatever can happen between two steps of a driver can be made to happen here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define

from relock._core.effects import Clock
from relock._owner import Owner
from relock._runtime.machine import Machine
from relock._runtime.net.channel import Channel
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.platform import Platform

FOREVER = float("inf")

Look = Callable[[str, float], object]
"""Takes the step that a thread is about to take or has just taken, and for how many seconds the step may wait."""

WAITS: dict[str, Callable[..., float | None]] = {
    "queue.get": lambda timeout=None: timeout,
    "event.wait": lambda timeout=None: timeout,
    "poller.poll": lambda milliseconds: milliseconds / 1000,
    "channel.wait": lambda seconds: seconds,
    "channel.ready": lambda milliseconds: milliseconds / 1000,
    "sleep": lambda seconds: seconds,
}
ACTS = (
    *WAITS,
    "queue.put",
    "event.set",
    "channel.send",
    "channel.receive",
    "channel.take",
    "open",
    "start",
    "waker.wake",
)
"""Steps that change something, or may take long: the moments before and after them are two steps."""


class Watch:
    """Tells the steps of one thread at a time; the steps of all other threads go unseen.

    Attributes:
        now: the time that the clock showed when the watched thread last looked.
    """

    def __init__(self, current: Callable[[], object]) -> None:
        self.now = 0.0
        self._current = current
        self._watched: object = None
        self._look: Look | None = None

    @contextmanager
    def each(self, look: Look) -> Iterator[None]:
        """Call `look` at each step of the calling thread, but for the steps that `look` itself takes."""
        self._watched, self._look = self._current(), look
        try:
            yield
        finally:
            self._look = None

    def is_watched(self) -> bool:
        """Return whether the caller is the thread that is watched."""
        return self._look is not None and self._current() == self._watched

    def see(self, what: str, seconds: float = 0.0) -> None:
        """Tell the test that the watched thread takes a step."""
        look = self._look
        if look is None or not self.is_watched():
            return
        self._look = None
        try:
            look(what, seconds)
        finally:
            self._look = look

    def around(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with a step before it and after it."""
        if what not in ACTS:
            return self._before(what, call)

        def watched(*words: Any, **options: Any) -> Any:
            seconds = WAITS[what](*words, **options) if what in WAITS else 0.0
            self.see(f"before {what}", FOREVER if seconds is None else seconds)
            result = call(*words, **options)
            self.see(f"after {what}")
            return result

        return watched

    def _before(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*words: Any, **options: Any) -> Any:
            self.see(f"before {what}")
            return call(*words, **options)

        return watched


class _Watched:
    """Part of a platform whose methods are watched."""

    def __init__(self, inner: Any, what: str, watch: Watch) -> None:
        self._inner = inner
        self._what = what
        self._watch = watch

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._inner, attribute)
        seen = self._watch.around(f"{self._what}.{attribute}", value) if callable(value) else value
        setattr(self, attribute, seen)
        return seen


class WatchedPlatform(Machine):
    """A platform like another one, all of whose calls are seen."""

    def __init__(self, inner: Platform, watch: Watch) -> None:
        def watched(what: str) -> Callable[[], Any]:
            make: Callable[[], Any] = getattr(inner, what)
            return watch.around(what, lambda: _Watched(make(), what, watch))

        self._inner = inner
        self._watch = watch
        self.clock: Clock = self._clock
        self.queue = watched("queue")
        self.poller = watched("poller")
        self.waker = watched("waker")
        self.sleep = watch.around("sleep", inner.sleep)
        self.chance = watch.around("chance", inner.chance)
        self.who: Callable[[], Owner] = watch.around("who", inner.who)
        self.open_channel = self._open_channel
        self.loop_channel = inner.loop_channel
        self.random_hex = watch.around("random_hex", inner.random_hex)  # type: ignore[method-assign]
        self.start = watch.around("start", inner.start)  # type: ignore[method-assign]
        self.current = inner.current  # type: ignore[method-assign]

    def _clock(self) -> float:
        self._watch.see("before clock")
        now = self._inner.clock()
        if self._watch.is_watched():
            self._watch.now = now
        return now

    def _open_channel(self, connection: RawConnection, timeout: float) -> Channel:
        opened = self._watch.around("open", self._inner.open_channel)(connection, timeout)
        return _Watched(opened, "channel", self._watch)  # type: ignore[return-value]


@define
class At:
    """Act at one step: the `number`-th that is seen, or an earlier one that is `at_latest`.

    Attributes:
        where: the name of that step; empty until it is reached.
        seen: how many steps there have been until then.
    """

    number: int
    deed: Callable[[], object]
    at_latest: Callable[[str], bool] = lambda _what: False
    where: str = ""
    seen: int = 0

    def __call__(self, what: str, _seconds: float) -> None:
        if self.where:
            return
        self.seen += 1
        if self.seen == self.number or self.at_latest(what):
            self.where = what
            self.deed()
