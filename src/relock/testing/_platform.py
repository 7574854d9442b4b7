"""The platform of a virtual process, in place of the one of a real process in `relock._runtime.platform`.

The runtime's own code runs on it unchanged, with tasks as its threads. Here are the queues, polls and wakers of
these tasks, and all else that they take from the machine.
"""

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from relock._core.effects import Clock
from relock._owner import Owner
from relock._runtime.machine import Machine
from relock._runtime.net.channel import Channel
from relock._runtime.net.loop_channel import LoopChannel
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.waker import Waker
from relock.testing._loop import VirtualLoopChannel
from relock.testing._process import Parking, Process, current_task


class VirtualQueue:
    """Queue for tasks, in place of a `queue.SimpleQueue`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._waiting: deque[Parking] = deque()

    def put(self, item: Any) -> None:
        """Add an item, and wake a task that waits for one."""
        self._items.append(item)
        while self._waiting and not self._waiting.popleft().wake():
            pass

    def get(self, *, timeout: float | None = None) -> Any:
        """Take the first item, waiting for it `timeout` seconds at most; raise `queue.Empty` if none came."""
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
        """Take the first item; raise `queue.Empty` if there is none."""
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """Return whether the queue is empty."""
        return not self._items

    def qsize(self) -> int:
        """Return the number of items."""
        return len(self._items)


class VirtualPoller:
    """Poller for tasks, in place of a `select.poll`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._channels: dict[int, Any] = {}

    def register(self, fileno: int, events: int) -> None:  # noqa: ARG002
        """Add the channel with this number to those that `poll` looks at."""
        self._channels[fileno] = self._process.channels[fileno]

    def unregister(self, fileno: int) -> None:
        """Remove the channel with this number from those that `poll` looks at."""
        del self._channels[fileno]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Wait until a channel is readable, `milliseconds` at most; return the readable ones, by their numbers."""
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
    """Waker for tasks, in place of a `relock._runtime.net.waker.Waker`."""

    def __init__(self, process: Process) -> None:
        self.fileno = process.world.fileno()
        self._is_set = False
        self._watching: list[Parking] = []
        process.channels[self.fileno] = self

    def wake(self) -> None:
        """End the poll that is under way, or the next one."""
        self._is_set = True
        watching, self._watching = self._watching, []
        for parking in watching:
            parking.wake()

    def clear(self) -> None:
        """Let the next poll wait again."""
        self._is_set = False

    def close(self) -> None:
        """Do nothing: there is no pipe to close."""

    def is_readable(self) -> bool:
        """Return whether a poll would end at once."""
        return self._is_set

    def watch(self, parking: Parking) -> None:
        """Have `parking` woken by the next `wake`."""
        self._watching.append(parking)


class VirtualPlatform(Machine):
    """Platform of a virtual process."""

    chance: Callable[[], float]
    clock: Clock
    loop_channel: Callable[..., LoopChannel] = VirtualLoopChannel
    open_channel: Callable[[RawConnection, float], Channel]
    poller: Callable[[], Any]
    queue: Callable[[], SimpleQueue[Any]]
    sleep: Callable[[float], object]
    waker: Callable[[], Waker]
    who: Callable[[], Owner]

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

    def _who(self) -> Owner:
        return current_task().owner.who

    def _open_channel(self, connection: RawConnection, timeout: float) -> Channel:
        channel: Channel = connection.open_channel(timeout)  # type: ignore[attr-defined]
        return channel

    def random_hex(self, count: int) -> str:
        """Return `count` bytes of the world's chance, in hexadecimal digits."""
        return f"{self.process.world.random.getrandbits(8 * count):0{2 * count}x}"

    def start(self, target: Callable[[], object], name: str) -> None:
        """Start a task of the process, in place of a thread."""
        self.process.start(target, f"{self.process.name} {name}")

    def current(self) -> Any:
        """Return the task that calls, in place of a thread."""
        return current_task()
