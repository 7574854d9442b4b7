"""Session of a client in one process: its parts, its beginning and its end."""

import itertools
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from relock._core.call_record import CallRecord
from relock._core.calls import Calls
from relock._core.interrupts import Interrupted
from relock._core.tasks import GoOn
from relock._options import ClientOptions
from relock._runtime.background.janitor import Janitor
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.machine import THREADS
from relock._runtime.masters.make import make_masters
from relock._runtime.masters.master import Reconnector
from relock._runtime.net.node import Node
from relock._runtime.platform import Platform
from relock._runtime.session import closing
from relock._runtime.session.keeper import Keeper
from relock._runtime.session.reports import Reports
from relock._runtime.wakeups.hub import Hub


class Session(Keeper):
    """Session: all that a client has in one process: connections, threads, holds. A forked child makes a new one.

    Attributes:
        calls: the calls of threads, as flows.
        interrupted: undoes what an interrupted call of a thread has left.
        interrupted_of_tasks: the same for tasks.
        reports: hears of everything that happens to the masters.
    """

    calls: Calls
    hub: Hub
    interrupted: Interrupted
    interrupted_of_tasks: Interrupted
    janitor: Janitor
    reports: Reports
    watchdog: Watchdog

    def __init__(self, nodes: Sequence[Node], options: ClientOptions, platform: Platform = THREADS) -> None:
        self.reports = Reports(self)
        super().__init__(make_masters(nodes, options, platform, self.reports), options, platform)
        if len(self.masters) > 1:
            for master in self.masters:
                master.reconnector = Reconnector(master)
        self.hub = Hub(self.client_id, options.prefix, self.masters, platform, self.reports)
        self.janitor = Janitor(self)
        self.watchdog = Watchdog(self)
        self.interrupted = Interrupted(self, may_wait=True)
        self.interrupted_of_tasks = Interrupted(self, may_wait=False)
        self.gates.overtake = self.overtake_later
        self.calls = Calls(self, self.interrupted, None if self.lone is None else self.lone.exchange)
        self._is_half_closed = False  # an interrupt came before its end
        self._closers = itertools.count()
        if platform is THREADS:
            closing.end_with_process(self)

    def overtake_later(self, record: CallRecord) -> None:
        """Have the janitor undo a call whose event loop stands still; an interrupt of the caller can't cut that short.

        If the loop turns first, its task goes on, and nothing is undone. Asking twice does no harm.
        """
        self.janitor.hand(GoOn(partial(self._overtake, record)))

    def _overtake(self, record: CallRecord) -> None:
        if record.claim():  # Claim, then act
            for owner in record.owners[:1]:
                self.hub.look_again(owner)  # the task may sleep for long, and must begin anew
                with suppress(RuntimeError):  # the loop is closed
                    record.task.get_loop().call_soon_threadsafe(self._end_wait, owner)
            self.interrupted_of_tasks.abandon(record)

    def _end_wait(self, owner: bytes) -> None:
        """End, on its loop, the wait of an overtaken call that was just about to wait when it was undone."""
        self.hub.look_again(owner)
        self.hub.forget(owner)

    def close(self) -> None:
        """End threads, waits and connections; leave the holds to their leases.

        A signal handler may call it in the middle of a call. That call can't end before the handler returns. So another
        thread closes the session then, and what the call leaves is ended as well.
        """
        if self.closed and not self._is_half_closed:
            return
        door = closing.door_of_call() if self.platform is THREADS else None
        if door is not None:
            self.is_closing = self.closed = True  # the interrupted call finds this when it goes on
            with suppress(RuntimeError):  # there can't be another thread now
                self.platform.start(partial(self._close_after, door), "relock-closer")
                return
        self._close()

    def _close_after(self, door: FrameType) -> None:
        closing.see_off(self, door)
        self._close()

    def _close(self) -> None:
        self._is_half_closed = False  # another thread that closes meanwhile has nothing to do
        try:
            closing.close(self)
        except BaseException:  # an interrupt: the next call of `close` begins again
            self._is_half_closed = True
            raise

    def drop(self) -> bool:
        """Have the session end once nothing is held: its client is unreachable, so no call can come.

        A finalizer calls this, at any instruction of any thread. So this takes no lock and waits for nothing. Return
        whether there is anything to end.
        """
        if self.closed or self.platform is not THREADS or sys.is_finalizing():
            return False
        services = [service for service in self.services() if service.has_begun]
        for service in services:
            service.call_after_steps(self._end_if_idle)
        if services or not any(master.connections or master.loop_connections for master in self.masters):
            return bool(services)
        for master in self.masters:
            master.close()
        for foreground in self.foregrounds.copy():
            foreground.close()
        self.losses.stop()
        self.events.stop()
        return True

    def _end_if_idle(self) -> None:
        """Close the session unless something is held: an owner may be inside, and its hold is renewed while it lives.

        Any of the threads may find that. One that closed the session itself would wait for itself.
        """
        is_idle = all(hold.loss is not None for hold in self.holds.copy().values())
        if is_idle and not self.closed and next(self._closers) == 0:
            try:
                self.platform.start(self.close, "relock-closer")
            except RuntimeError:  # there can't be another thread now
                self._closers = itertools.count()

    def abandon_in_child(self) -> None:
        """Close the copies of the parent's sockets in a forked child, without a word to any server."""
        self.closed = True
        self.hub.abandon()
        for master in self.masters:
            master.abandon()
