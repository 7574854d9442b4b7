"""Carrying out what flows ask for, with threads: see the contract in `relock._core.effects`."""

from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import Any

from relock._core.effects import Answer, Ask, Clock, Effect, Failure, Listen, Park, Undo
from relock._errors import ConfigurationError
from relock._keys import LockKeys
from relock._runtime.hub import Hub
from relock._runtime.links import NETWORK_ERRORS, Link, Master

Flow = Generator[Effect, Any, Any]
UnderWay = list[Failure] | tuple[Link, float]


class Driver:
    """Runs flows over the masters and the hub of one session."""

    clock: Clock
    masters: tuple[Master, ...]
    hub: Hub

    def __init__(self) -> None:
        self._handlers: dict[type, Callable[[Any], Any]] = {
            Ask: self._ask,
            Listen: self._listen,
            Park: self._park,
            Undo: self._undo,
        }
        self._shielded_handlers = {**self._handlers, Ask: self.fan_out}

    @abstractmethod
    def check_open(self) -> None:
        """Raises `ClientClosedError` once the client was closed."""

    @abstractmethod
    def waits(self) -> None:
        """A flow begins to wait."""

    @abstractmethod
    def queued(self, lease_end: float) -> None:
        """A waiter has a ticket, so signs of life are due; the next one at `lease_end`, unless it comes before."""

    @abstractmethod
    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, void_at: float) -> None:
        """Ends, in the background, whatever `owner` may have on any master."""

    def run(self, flow: Flow) -> Any:
        """Carries out what `flow` asks for, to its end; returns what the flow returns."""
        return self._run(flow, self._handlers)

    def run_shielded(self, flow: Flow) -> Any:
        """As `run`, for cleaning up: also while the client is being closed."""
        return self._run(flow, self._shielded_handlers)

    def _run(self, flow: Flow, handlers: dict[type, Callable[[Any], Any]]) -> Any:
        try:
            effect = flow.send(None)
            while True:
                effect = flow.send(handlers[type(effect)](effect))
        except StopIteration as end:
            return end.value

    def _ask(self, ask: Ask) -> list[Answer]:
        self.check_open()
        return self.fan_out(ask, strict=True)

    def fan_out(self, ask: Ask, *, strict: bool = False) -> list[Answer]:
        """Sends the calls to every master before it reads from any.

        A master that turns out to be none (a replica, say) is a `ConfigurationError` where that is `strict`; for
        whoever gives back or cleans up it is one more master that does not answer.
        """
        under_way = [self._send(master, ask, strict=strict) for master in self.masters]
        return [self._receive(ask, one) for one in under_way]

    def _send(self, master: Master, ask: Ask, *, strict: bool) -> UnderWay:
        link = None
        try:
            link = master.check_out()
            sent_at = self.clock()
            link.request(ask.calls, ask.until)
        except NETWORK_ERRORS as error:
            if link is not None:
                link.close()
            return [master.failed(error, sent=link is not None)] * len(ask.calls)
        except ConfigurationError as error:
            if strict:
                raise
            return [Failure(master.address, str(error), permanent=True, sent=False)] * len(ask.calls)
        return link, sent_at

    def _receive(self, ask: Ask, sent: UnderWay) -> Answer:
        if isinstance(sent, list):
            return sent
        link, sent_at = sent
        master = link.master
        try:
            answers = link.replies(ask.calls, sent_at, ask.until)
        except NETWORK_ERRORS as error:
            link.close()
            return [master.failed(error, sent=True)] * len(ask.calls)
        master.give_back(link)
        return answers

    def _listen(self, listen: Listen) -> bool:
        self.waits()
        self.hub.register(listen.owner, listen.keys)
        return self.hub.listen(listen.until)

    def _park(self, park: Park) -> bool:
        waiter = self.hub.register(park.owner, park.keys)
        if park.ticket is not None:
            waiter.tickets[:] = [park.ticket]
            self.queued(park.lease_end)
        self.check_open()  # after registering, so that close() finds whoever comes too late for this
        woken = waiter.park(park.until - self.clock())
        self.check_open()
        return woken

    def _undo(self, undo: Undo) -> None:
        self.undo(undo.keys, undo.owner, 0, undo.ttl, undo.until)
