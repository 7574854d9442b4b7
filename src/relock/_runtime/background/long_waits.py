"""Long waits: events about callers that wait for a lock for longer than the client's ``long_wait``."""

from relock._core.effects import Ask
from relock._core.flows import inspect
from relock._core.flows.ask import nth_of_each
from relock._events import LongWait
from relock._keys import SEMAPHORE, LockKeys
from relock._runtime.background.session_view import SessionView
from relock._scripts import load

TOLD_SECONDS = 60.0  # between two events about one lock
LOCKS_MAX = 10  # of which one heartbeat tells


class LongWaits:
    """Long waits of a session's callers; the janitor's thread alone calls this."""

    def __init__(self, session: SessionView) -> None:
        self._session = session
        self._told_at: dict[LockKeys, float] = {}

    def tell(self) -> None:
        """Emit an event for each lock for which a caller waits too long, about the caller that waits longest."""
        session, long_wait = self._session, self._session.options.long_wait
        if long_wait is None or session.closed:
            return
        now = session.clock()
        self._told_at = {keys: at for keys, at in self._told_at.items() if now - at < TOLD_SECONDS}
        longest: dict[LockKeys, tuple[float, bytes]] = {}
        for record, (_, since, _) in session.waits.copy().items():
            spec = record.spec
            if spec is not None and now - since >= long_wait and spec.keys.kind != SEMAPHORE:
                longest.setdefault(spec.keys, (since, record.owners[0]))  # waits are in the order of their beginnings
        untold = [(keys, *wait) for keys, wait in longest.items() if keys not in self._told_at][:LOCKS_MAX]
        if not untold:
            return
        calls = tuple(load("inspect").call(keys, limit=inspect.QUEUE_LIMIT) for keys, _, _ in untold)
        answers = session.ask_shielded(Ask(calls, now + session.node_timeout))
        for i, (keys, since, waiter) in enumerate(untold):
            info = inspect.agree(keys.name, nth_of_each(answers, i))
            if info is not None:
                self._told_at[keys] = now
                owner, queue = waiter.decode(), info.queue
                ahead = queue.index(owner) if owner in queue else len(queue)
                session.emit(LongWait(keys.name, owner, info.owner, ahead, now - since, kind=keys.kind))
