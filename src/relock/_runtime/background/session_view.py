"""Session, as its background threads see it."""

from collections import deque
from typing import Any, Protocol

from relock._core.book import Book
from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Ask, Clock
from relock._core.hold import Hold
from relock._core.host import Counters
from relock._core.pulse import Pulse
from relock._events import Event
from relock._runtime.driver import Flow
from relock._runtime.masters.master import Master
from relock._runtime.platform import Platform
from relock._runtime.wakeups.hubs import Hubs


class ForegroundView(Protocol):
    """Driver of the calls of tasks on one event loop, as other threads see it."""

    pulse: Pulse

    @property
    def loop(self) -> object:
        """Event loop of the tasks."""

    @property
    def is_in_use(self) -> bool:
        """True while calls are under way that `close` waits for."""

    @property
    def is_open(self) -> bool:
        """True if the loop has connections; reading this ends what a loop that is closed has left."""

    def close(self) -> None:
        """Have the loop close the connections of its tasks."""

    def end_if_closed(self) -> None:
        """End what the loop has left, if it is closed."""

    def end_if_stopped(self) -> None:
        """End what the loop has left, if it does not run, at the end of the process."""

    def ask_for_sign_of_life(self) -> None:
        """Ask the loop to answer for its `pulse` when it turns next."""


class SessionView(Protocol):
    """Session, as the watchdog and the janitor see it."""

    client_id: str
    clock: Clock
    closed: bool
    counters: Counters
    foregrounds: set[ForegroundView]
    node_timeout: float
    holds: Book
    hubs: Hubs
    masters: tuple[Master, ...]
    platform: Platform
    prefix: str
    steps: deque[ClockStep]

    def run_on_own(self, flow: Flow) -> Any:
        """Run a flow that must not wait behind calls; `ClientClosedError` once the client was closed."""

    def run_shielded(self, flow: Flow) -> Any:
        """Run a flow that cleans up, also while the client is being closed, without waiting behind calls."""

    def ask_shielded(self, ask: Ask) -> list[Answer]:
        """Ask all masters, to clean up, also while the client is being closed."""

    def heal(self, holds: tuple[Hold, ...]) -> None:
        """Give holds that a quorum has just confirmed to the masters that do not have them, in the background."""

    def sweep(self, now: float) -> float:
        """Close connections that nobody has needed for long; return when there may be more."""

    def lose(self, hold: Hold, reason: str) -> None:
        """End a hold that is over."""

    def emit(self, event: Event) -> None:
        """Tell users of an event."""
