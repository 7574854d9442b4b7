"""The platform of a virtual process, in place of the one of a real process in `relock._runtime.platform`.

The runtime's own code runs on it unchanged, with tasks as its threads. Here are the queues, locks and polls of these
tasks, and all else that they take from the machine.
"""

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from relock._core.effects import Clock
from relock._owner import Who
from relock._runtime.machine import Machine
from relock._runtime.net.channel import Channel
from relock._runtime.net.loop_channel import LoopChannel
from relock._runtime.net.loop_watch import LoopWatch
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.waker import Waker
from relock.testing._loop import VirtualLoopChannel, VirtualLoopWatch
from relock.testing._process import Parking, Process, current_task


class VirtualQueue:
    """A `queue.SimpleQueue` for tasks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._waiting: deque[Parking] = deque()

    def put(self, item: Any) -> None:
        """See `queue.SimpleQueue`."""
        self._items.append(item)
        while self._waiting and not self._waiting.popleft().wake():
            pass

    def get(self, *, timeout: float | None = None) -> Any:
        """See `queue.SimpleQueue`."""
        until = None if timeout is None else self._process.local() + timeout
        while not self._items:
            left = None if until is None else until - self._process.local()
            if left is not None and left <= 0:
                raise Empty
            parking = Parking(self._process)
            self._waiting.append(parking)
            parking.wait(left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """See `queue.SimpleQueue`."""
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """See `queue.SimpleQueue`."""
        return not self._items

    def qsize(self) -> int:
        """See `queue.SimpleQueue`."""
        return len(self._items)


class VirtualPoller:
    """A `select.poll` for tasks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._channels: dict[int, Any] = {}

    def register(self, fileno: int, events: int) -> None:  # noqa: ARG002
        """See `select.poll`."""
        self._channels[fileno] = self._process.channels[fileno]

    def unregister(self, fileno: int) -> None:
        """See `select.poll`."""
        del self._channels[fileno]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """See `select.poll`."""
        ready = self._ready()
        if not ready and milliseconds > 0:
            parking = Parking(self._process)
            for channel in self._channels.values():
                channel.watch(parking)
            parking.wait(milliseconds / 1000)
            ready = self._ready()
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        return [(fileno, 1) for fileno, channel in self._channels.items() if channel.is_readable()]


class VirtualWaker:
    """A `relock._runtime.net.waker.Waker` for tasks."""

    def __init__(self, process: Process) -> None:
        self.fileno = process.world.fileno()
        self._is_set = False
        self._watching: list[Parking] = []
        process.channels[self.fileno] = self

    def wake(self) -> None:
        """See `Waker`."""
        self._is_set = True
        watching, self._watching = self._watching, []
        for parking in watching:
            parking.wake()

    def clear(self) -> None:
        """See `Waker`."""
        self._is_set = False

    def close(self) -> None:
        """See `Waker`."""

    def is_readable(self) -> bool:
        """Whether a poll finds it."""
        return self._is_set

    def watch(self, parking: Parking) -> None:
        """Wakes the tasks that poll it."""
        self._watching.append(parking)


class VirtualPlatform(Machine):
    """What the runtime takes from a virtual process."""

    chance: Callable[[], float]
    clock: Clock
    loop_channel: Callable[..., LoopChannel] = VirtualLoopChannel
    loop_watch: Callable[..., LoopWatch] = VirtualLoopWatch
    open_channel: Callable[[RawConnection, float], Channel]
    poller: Callable[[], Any]
    queue: Callable[[], SimpleQueue[Any]]
    sleep: Callable[[float], object]
    waker: Callable[[], Waker]
    who: Callable[[], Who]

    def __init__(self, process: Process) -> None:
        world = process.world
        self.process = process
        self.clock = process.clock
        self.queue = lambda: VirtualQueue(process)  # type: ignore[assignment,return-value]
        self.poller = lambda: VirtualPoller(process)
        self.waker = lambda: VirtualWaker(process)  # type: ignore[assignment,return-value]
        self.sleep = process.sleep
        self.chance = world.chance
        self.who = self._who
        self.open_channel = self._open_channel

    def _who(self) -> Who:
        return current_task().owner.who

    def _open_channel(self, connection: RawConnection, timeout: float) -> Channel:
        channel: Channel = connection.open_channel(timeout)  # type: ignore[attr-defined]
        return channel

    def random_hex(self, count: int) -> str:
        """See `Platform`."""
        return f"{self.process.world.random.getrandbits(8 * count):0{2 * count}x}"

    def start(self, target: Callable[[], object], name: str) -> None:
        """See `Platform`."""
        self.process.start(target, f"{self.process.name} {name}")

    def current(self) -> Any:
        """See `Platform`."""
        return current_task()
