"""Session, as its background threads see it."""

from collections import deque
from typing import Any, Protocol

from relock._core.book import Book
from relock._core.call_record import CallRecord
from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Ask, Clock
from relock._core.hold import Hold
from relock._core.host import Counters
from relock._core.pulse import Pulse
from relock._events import Event, LossCode
from relock._options import ClientOptions
from relock._owner import Owner
from relock._runtime.driver import Flow
from relock._runtime.masters.master import Master
from relock._runtime.platform import Platform
from relock._runtime.wakeups.hubs import Hubs


class ForegroundView(Protocol):
    """Driver of the calls of tasks on one event loop, as other threads see it.

    Attributes:
        client: the ``<client>`` in the names of the holds that tasks take by it.
        pulse: shows whether the loop turns.
    """

    client: bytes
    pulse: Pulse

    @property
    def is_in_use(self) -> bool:
        """True while calls are under way that `close` waits for."""

    @property
    def is_open(self) -> bool:
        """True if the loop has connections. If the loop is closed, first undo its calls and close these."""

    def close(self) -> None:
        """Have the loop close the connections of its tasks."""

    def renew(self) -> None:
        """Have the loop's connections authenticate with new credentials."""

    def end_if_closed(self) -> None:
        """Undo the calls of the loop, and close its connections, if the loop is closed."""

    def end_if_stopped(self) -> None:
        """Undo the calls of the loop, and close its connections, if the loop does not run; at the process's end."""

    def ask_for_sign_of_life(self) -> None:
        """Ask the loop to answer for its `pulse` when it turns next."""


class SessionView(Protocol):
    """Session, as the watchdog and the janitor see it."""

    client_id: str
    clock: Clock
    closed: bool
    counters: Counters
    deadlock_after: float
    foregrounds: dict[ForegroundView, None]
    node_timeout: float
    holds: Book
    hubs: Hubs
    masters: tuple[Master, ...]
    options: ClientOptions
    platform: Platform
    prefix: str
    rings: set[frozenset[bytes]]
    steps: deque[ClockStep]
    waits: dict[CallRecord, tuple[Owner, float, float]]

    def run_on_own(self, flow: Flow) -> Any:
        """Run a flow that must not wait behind calls; raise `ClientClosedError` once the client was closed."""

    def run_shielded(self, flow: Flow) -> Any:
        """Run a flow that cleans up, even while the client is being closed, without waiting behind calls."""

    def ask_shielded(self, ask: Ask) -> list[Answer]:
        """Ask all masters for a clean-up, even while the client is being closed."""

    def heal(self, holds: tuple[Hold, ...]) -> None:
        """Have the janitor give `holds`, which a quorum has just confirmed, to the masters that lack them."""

    def sweep(self, now: float) -> float:
        """Close connections that were idle for long; return when to look again."""

    def lose(self, hold: Hold, code: LossCode) -> None:
        """End a hold that is over."""

    def emit(self, event: Event) -> None:
        """Report an event to users."""
