"""Clients that live, and cannot act for a while: their messages come, and nothing there looks at them.

* ``block loop``: a callback keeps an event loop for longer than any lease; the threads beside the loop go on.
* ``stop loop``: the loop is stopped, and not closed; it runs again later.
* ``long handler``: a thread is caught in a signal's handler while it waits.
* ``stop process``: the whole process stands still, as by SIGSTOP.
* ``close loop``: the loop is closed, and its tasks, which are kept, never go on.

The first of the queue may be one of these. The turn of the next one comes only when the first has lost its place, so
the referee grants some time for each.
"""

from attrs import define, field

from relock.testing._process import Process
from relock.testing._world import World
from sim.beliefs import Call
from sim.plan import CLOSE_LOOP, LONG_HANDLER, LOOP_STUCK, STOP_PROCESS

TURN_SECONDS = 3.0  # after which a waiter that was told and has not looked loses its place
HEARTBEAT_SECONDS = 2.5  # until a heartbeat tells the next one
STOPPED_SECONDS = 10.0  # for which a stopped process counts as alive, because nothing in it gives up a place
COSTS = {
    **dict.fromkeys((*LOOP_STUCK, LONG_HANDLER, CLOSE_LOOP), TURN_SECONDS + HEARTBEAT_SECONDS),
    STOP_PROCESS: STOPPED_SECONDS,
}  # seconds for which a free lock may wait for such a client
RETURN_SECONDS = 0.5  # until a client that goes on has looked again, and has its place
AT_ONCE_SECONDS = 0.5  # of two that come within this time, either may be the first in the queue


@define(eq=False)
class Spell:
    """The time for which a client cannot act.

    Attributes:
        called_at: the moment since which it has waited for the lock.
        end: the true time at which it goes on; only planned before that has come.
        left: the seconds in all for which a free lock may yet wait for it.
    """

    process: Process
    called_at: float
    end: float
    left: float


@define
class Stuck:
    """The clients that are stuck, and those that were."""

    world: World
    _spells: list[Spell] = field(factory=list)

    def begin(self, call: Call, kind: str, seconds: float) -> Spell:
        """Note that the client of this call gets stuck, for about so many seconds."""
        spell = Spell(call.process, call.called_at, self.world.now + seconds, COSTS[kind])
        self._spells.append(spell)
        return spell

    def end(self, spell: Spell) -> None:
        """Note that the client of this spell goes on."""
        spell.end = self.world.now

    def until(self, process: Process) -> float:
        """Return the time at which a process goes on, or last did; minus infinity if it was never stuck."""
        return max((spell.end for spell in self._spells if spell.process is process), default=float("-inf"))

    @property
    def last_end(self) -> float:
        """The time at which the last stuck client goes on."""
        return max((spell.end for spell in self._spells), default=float("-inf"))

    def now(self) -> set[Process]:
        """Return the processes that are stuck."""
        return {spell.process for spell in self._spells if spell.end > self.world.now}

    def was(self, process: Process, since: float) -> bool:
        """Return whether a process was stuck after the true time `since`, or had only just gone on by then."""
        return self.until(process) + RETURN_SECONDS >= since

    def cost(self, call: Call, since: float) -> float:
        """Return the seconds for which the lock may have waited since then for clients that are ahead of this call."""
        return sum(spell.left for spell in self._ahead(call, since))

    def pay(self, call: Call, since: float, seconds: float) -> None:
        """Charge the spells ahead of this call with a wait of the lock, by which they may cost less from now on."""
        for spell in self._ahead(call, since):
            paid = min(spell.left, seconds)
            spell.left -= paid
            seconds -= paid

    def _ahead(self, call: Call, since: float) -> list[Spell]:
        """Return the spells of the clients ahead, which may have come while this call could not act itself."""
        queued_at = max(call.called_at, self.until(call.process))
        return [
            spell
            for spell in self._spells
            if spell.process is not call.process
            and spell.end >= since
            and spell.called_at <= queued_at + AT_ONCE_SECONDS
        ]
