"""Driver that carries out flows on the calling thread; `relock._core.effects` has the contract."""

from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import Any

from relock._core.asking import Panel
from relock._core.call_record import Enter, Step
from relock._core.clocks import Offset
from relock._core.effects import Answer, Ask, Exchange, Handed, Leave, Listen, Park, Pause, Undo
from relock._core.host import Host
from relock._runtime.masters.fan_out import FanOut
from relock._runtime.masters.make import lone_master
from relock._runtime.masters.master import Master
from relock._runtime.masters.pool import Pool
from relock._runtime.platform import Platform
from relock._runtime.wakeups.hub import ThreadHub
from relock._runtime.wakeups.waiter import Waiter

Flow = Generator[Step, Any, Any]
Handlers = dict[type, Callable[[Any], Any]]


class Driver(Host):
    """Driver of flows over the masters and the hub of one session.

    Attributes:
        fan_out: asks all masters.
        lone: the only master, if calls can go straight to it.
    """

    hub: ThreadHub
    platform: Platform

    def __init__(self, panel: Panel[Master], platform: Platform, node_timeout: float) -> None:
        super().__init__(node_timeout, platform.clock)
        self.panel = panel
        self.masters = tuple(panel.masters)
        self.platform = platform
        self.quorum = panel.quorum
        self.lone = lone_master(panel)
        self.fan_out = FanOut(panel, platform)
        self._handlers: Handlers = {
            Exchange: self.ask,
            Ask: self.ask,
            Listen: self._listen,
            Park: self._park,
            Leave: self._leave,
            Undo: self.undo_attempt,
            Enter: self.enter,
            Pause: self._pause,
        }
        self._own_handlers = {**self._handlers, Ask: self._ask_on_own}
        self._shielded_handlers = {**self._handlers, Ask: self.ask_shielded}

    @abstractmethod
    def begin_park(self, waiter: Waiter, park: Park) -> None:
        """Note that `waiter` is about to sleep: if it has a ticket, heartbeats are due from now on."""

    @abstractmethod
    def warn_if_a_loop_waits(self, name: str) -> None:
        """Warn once if the calling thread, which is about to wait for the lock `name`, runs an event loop."""

    @property
    def pools(self) -> list[Pool]:
        """Pools of all connections to the masters."""
        return [server.pool for master in self.masters for server in master.servers]

    def offsets(self) -> list[Offset]:
        """Return the bounds that are known of each master's clock."""
        return [master.facts.offset for master in self.masters]

    def is_down(self, master: int) -> bool:
        """Return whether the master with this number is known to be down."""
        return self.masters[master].facts.down is not None

    @abstractmethod
    def enter(self, enter: Enter) -> bool:
        """Carry out an `Enter`."""

    def run(self, flow: Flow, handlers: Handlers | None = None) -> Any:
        """Carry out what `flow` asks for, to its end; return what the flow returns."""
        handlers, result = handlers or self._handlers, None
        try:
            while True:
                effect = flow.send(result)
                result = handlers[effect.__class__](effect)
        except StopIteration as end:
            return end.value

    def run_on_own(self, flow: Flow) -> Any:
        """Run a flow that must not wait behind calls: if no connection is free, it gets one of its own."""
        return self.run(flow, self._own_handlers)

    def run_shielded(self, flow: Flow) -> Any:
        """Run a flow that cleans up, as `run_on_own` does, even while the client is being closed."""
        return self.run(flow, self._shielded_handlers)

    def ask(self, asked: Ask | Exchange) -> list[Answer]:
        """Ask all masters; raise `ClientClosedError` once the client was closed, unless `asked` ends something."""
        if not asked.ends:
            self.check_open()
        return self.fan_out.ask(asked, strict=not asked.ends)

    def _ask_on_own(self, ask: Ask) -> list[Answer]:
        self.check_open()
        return self.fan_out.ask(ask, strict=True, is_call=False)

    def ask_shielded(self, ask: Ask) -> list[Answer]:
        """Ask all masters for a clean-up: even while the client is being closed, and never behind calls."""
        return self.fan_out.ask(ask, strict=False, is_call=False)

    def _listen(self, listen: Listen) -> bool:
        if self.closed:
            self.check_open()  # after `close`, no subscription may be made
        self.hub.register(listen.owner, listen.keys)
        return self.hub.listen(listen.keys, listen.until)

    def _park(self, park: Park) -> list[Handed]:
        waiter = self.hub.waiters.get(park.owner) or self.hub.register(park.owner, park.keys)
        if not waiter.parks and self.platform.loop() is not None:
            self.warn_if_a_loop_waits(park.keys.name)
        self.begin_park(waiter, park)
        waiter.park(park.until, self.quorum, self.hub.gather_seconds)
        if self.closed:
            self.check_open()
        return self.hub.handed_to(waiter)

    def _leave(self, leave: Leave) -> None:
        self.hub.forget(leave.owner)

    def _pause(self, pause: Pause) -> None:
        self.platform.sleep(pause.seconds)
