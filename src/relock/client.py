"""Client: makes locks for threads, and asks the masters about locks."""

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, Self, TypeVar, Unpack, overload

from attrs import evolve

from relock._core.flows import inspect as inspect_flows
from relock._core.flows.inspect import LockInfo
from relock._core.lock_spec import LockSpec, MultiSpec, Wish
from relock._decorators import Synchronizes, checked
from relock._errors import RelockWarning
from relock._holding import check_answered, quorum_error, too_few_answered
from relock._keys import lock_keys, permit_keys
from relock._options import (
    ClientArguments,
    ClientOptions,
    LockArguments,
    LockOptions,
    PermitArguments,
    SharedArguments,
    check_limit,
    check_lock_options,
    check_name,
    check_names,
    set_options,
)
from relock._runtime.live_set import LiveSet
from relock._runtime.machine import THREADS
from relock._runtime.net.green import warning_of_greenlets
from relock._runtime.net.parse import Nodes, parse_nodes, warning_of_number
from relock._runtime.platform import Platform
from relock._runtime.session import closing
from relock._runtime.session.session import Session
from relock._signatures import check_client_keywords, check_lock_keywords, lists
from relock.lock import Lock

if TYPE_CHECKING:
    from relock._elections import OnLost
    from relock._statistics import Statistics
    from relock.election import Lead, Stop
    from relock.latch import Latch
    from relock.multi_lock import MultiLock
    from relock.rwlock import RWLock
    from relock.semaphore import Semaphore

logger: logging.Logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_clients: "LiveSet[Client]" = LiveSet()


class Client(Synchronizes):
    """Locks on one Redis or Valkey master, or on a quorum of several independent ones.

    Making a client checks the arguments and sends nothing; the client connects when it is first used. Threads may share
    one: make it, keep it, and `close` it. A client that is dropped open is a ``ResourceWarning``, and ends once nothing
    is held. After ``fork()`` the child's copy is a fresh client that holds nothing.

    Args:
        nodes: a URL (``redis://``, ``rediss://``, ``valkey://``, ``valkeys://``, ``unix://``, ``redis+sentinel://``,
            ``redis+cluster://``, ``rediss+cluster://``), a client of redis-py or valkey-py, a pool of redis-py, or a
            sequence of these, one for each independent master. A cluster is one master, and goes with no others.
        ttl: lease of a hold in seconds, 0.05 to 10 years; default 30.0.
        renew: the watchdog renews the lease after each third of it, while the owner lives; default True.
        fair: first come, first served; False lets a newcomer take a free lock before the queue; default True.
        node_timeout: longest wait for a master (s), 0.001 to ttl/3 and to a day; default None: ttl/10, in 0.1 to 1.
        max_hold: seconds, above 0, after which the watchdog renews a hold no more; default None: no limit.
        patience: seconds, 0 to ``math.inf``, for which an acquire goes on without a quorum; default 30.0.
        restart_guard: seconds, 0 to 10 years, without grants after a restart; default None: 0 for one master, else ttl.
        restart_guard_by: ``"server"``, the default: the guard asks which server it is; ``"marker"``: only for its key.
        min_replicas: replicas that must confirm a grant and a renewal, 0 to 2147483647; default 0.
        replica_timeout: longest wait for these replicas in seconds, above 0; default 1.0.
        max_connections: connections for calls to each master, from 1; default 64.
        handoff: ``"grant"``, the default: a release gives the lock to the first waiter; ``"wake"``: only wakes it.
        redisson: tell and hear waiters of Redisson's ``RLock`` on the same key; default False. One master only.
        deadlock: ``"raise"``, the default, ``"report"`` or ``"ignore"``: for a wait in a ring of callers.
        deadlock_after: seconds, from 0.5, until a wait looks for a ring of several clients; default 2.5; None: never.
        long_wait: seconds, above 0, after which a wait for a lock is an event `LongWait`; default None: never.
        drift_factor: allowance for clocks of different rates, as a part of the ttl, 0.0 to 0.5; default 0.01.
        prefix: first part of every key and channel, not empty, without braces; default ``"lock"``.
        client_name: readable part of the client's name on the server; default None: host and process id.
        on_lost: called with a `Loss` for each hold that was lost, on a thread of its own; default None.
        on_event: called with each `Event`, on a thread of its own; default None.

    Raises:
        TypeError: an argument of a wrong type, an unknown option.
        ConfigurationError: a value that can't work.
    """

    _session: Session
    _platform: Platform = THREADS

    @lists(ClientArguments, ClientOptions)
    def __init__(self, nodes: Nodes, **options: Unpack[ClientArguments]) -> None:
        self._nodes = parse_nodes(nodes)
        check_client_keywords(options)
        given, masters = ClientOptions(**options), len(self._nodes)
        given.check_guard(given.ttl, masters)
        self._options = evolve(given, restart_guard=given.guard_for(masters))
        self._lock_options, self._addresses = self._options.for_lock(), tuple(node.address for node in self._nodes)
        self._session = Session(self._nodes, self._options, self._platform)
        _clients.add(self)
        self._warn()

    def _warn(self) -> None:
        """Warn once of options that work, but promise less than they seem to."""
        guard, ttl = self._options.guard_for(len(self._nodes)), self._options.ttl
        short = f"restart_guard={guard} is below the ttl of {ttl} s: a lease that a restart forgot may outlast it"
        for text in (warning_of_number(len(self._nodes)), short if 0 < guard < ttl else None, warning_of_greenlets()):
            if text is not None:
                logger.warning(text)
                warnings.warn(text, RelockWarning, stacklevel=3)

    # Locks ----------------------------------------------------------------------------------------------------------

    @lists(LockArguments)
    def lock(self, name: str, **options: Unpack[LockArguments]) -> Lock:
        """Return a lock; send nothing.

        Args:
            name: any non-empty str that has a UTF-8 form and does not begin with ``}``.
            ttl: lease in seconds, 0.05 to 10 years; with several masters at most the guard; default: the client's.
            renew: whether the watchdog renews the lease while the owner lives; default: the client's.
            fair: first come, first served; False lets a newcomer take a free lock; default: the client's.
            timeout: longest wait in seconds, from 0, of ``with`` and of `Lock.acquire` without a timeout; -1 or None,
                the default: as long as it takes.
            owner: threads of this client that name the same owner share the hold; default None: the calling thread.
            max_hold: seconds, above 0, after which the watchdog renews the hold no more; default: the client's.
            deadlock: what a wait does in a deadlock: ``"raise"``, ``"report"`` or ``"ignore"``; default: the client's.
            on_lost: called once with a `Loss` if the hold is lost, on a thread of its own; default None.
            at_least: seconds, 0 to 10 years, from the grant on, for which the lock stays taken even if it is released
                earlier; with several masters at most the guard; default 0.0.
            note: text for people that look at the lock, such as which job it is or a URL, which the masters keep with
                the hold: a str of 1 to 200 bytes in UTF-8; default None.

        Raises:
            TypeError: an argument of a wrong type, an unknown option.
            ConfigurationError: a value that can't work.
        """
        if options:
            check_lock_keywords("lock", options)
        spec = self._spec_of(name, **options)
        return Lock(self, spec, spec.keys.name)

    @lists(SharedArguments)
    def lock_all(self, names: Iterable[str], **options: Unpack[SharedArguments]) -> "MultiLock":
        """Return one lock for several names: it takes all of them or none; send nothing.

        Args:
            names: from 1 to 64 different names, each as for `lock`. Their order makes no difference.
            options: as for `lock`; each lock has them. ``timeout`` is the longest wait for all locks together. If
                several holds are lost, ``on_lost`` is called for the first one only.

        Raises:
            TypeError: an argument of a wrong type, such as a single str for the names; an unknown option.
            ConfigurationError: a value that can't work.
        """
        from relock.multi_lock import MultiLock

        check_lock_keywords("lock_all", options, SharedArguments)
        return MultiLock(self, self._multi_spec_of(names, **options))

    @lists(SharedArguments)
    def rwlock(self, name: str, **options: Unpack[SharedArguments]) -> "RWLock":
        """Return a read-write lock: many readers or one writer; send nothing.

        Args:
            name: as for `lock`, which is the writer's side of the same name.
            options: as for `lock`. With ``fair=False`` a writer waits for as long as new readers come.

        Raises:
            TypeError: an argument of a wrong type, an unknown option.
            ConfigurationError: a value that can't work.
        """
        from relock.rwlock import RWLock

        check_lock_keywords("rwlock", options, SharedArguments)
        return RWLock(self, self._spec_of(name, **options), self._options)

    @lists(PermitArguments)
    def semaphore(self, name: str, limit: int, **options: Unpack[PermitArguments]) -> "Semaphore":
        """Return a semaphore: at most `limit` permits at a time; send nothing.

        Args:
            name: as for `lock`; a lock of the same name is another thing.
            limit: how many permits there are, 1 to 1,000. Callers with different limits each judge by their own.
            options: as for `lock`. ``owner`` names the permits, whose holders are not tied to a thread then.

        Raises:
            TypeError: an argument of a wrong type, an unknown option.
            ConfigurationError: a value that can't work.
        """
        from relock.semaphore import Semaphore

        check_lock_keywords("semaphore", options, PermitArguments)
        return Semaphore(self, self._permit_spec_of(name, limit, **options), limit, self._options)

    def latch(self, name: str, parties: int, ttl: float = 3600.0) -> "Latch":
        """Return a latch, which opens once so many parties have arrived; send nothing.

        Args:
            name: as for `lock`; a lock of the same name is another thing. For the next round, use another name.
            parties: how many parties must arrive, 1 to 1,000; the same for all callers.
            ttl: seconds, 0.05 to 10 years, for which the masters remember the arrivals after the last one; default
                3600.0.

        Raises:
            TypeError: an argument of a wrong type.
            ConfigurationError: a value that can't work.
        """
        from relock._latches import latch_spec
        from relock.latch import Latch

        return Latch(self, latch_spec(self._options, self._addresses, name, parties, ttl))

    def _multi_spec_of(self, names: Iterable[str], **given: Unpack[LockArguments]) -> MultiSpec:
        return MultiSpec(tuple(self._spec_of(name, **given) for name in check_names(names)))

    def _spec_of(self, name: str, **given: Unpack[LockArguments]) -> LockSpec:
        """Return what the requests for a lock of this name have in common."""
        keys = lock_keys(self._options.prefix, check_name(name))
        return LockSpec.of(keys, self._addresses, self._options_of(**given), self._options)

    def _permit_spec_of(self, name: str, limit: int, **given: Unpack[PermitArguments]) -> LockSpec:
        """Return what the requests for one permit of a semaphore have in common."""
        keys, wish = permit_keys(self._options.prefix, check_name(name)), Wish(1, check_limit(limit))
        return LockSpec.of(keys, self._addresses, self._options_of(**given), self._options, wish)

    def _options_of(self, **given: Unpack[LockArguments]) -> LockOptions:
        wanted = set_options(given)
        if not wanted:
            return self._lock_options
        options = self._options.for_lock(**wanted)
        self._options.check_lock(options, len(self._nodes))
        return options

    def elect(
        self,
        name: str,
        lead: "Lead",
        *,
        stop: "Stop" = None,
        ttl: float | None = None,
        note: str | None = None,
        on_lost: "OnLost" = None,
    ) -> None:
        """Call `lead` with a `Term` whenever this process is the leader, until `stop` is set; return then.

        When `lead` returns, the leadership is given up and the campaign goes on; also after a loss, and while too few
        masters answer. `lead` is not interrupted: it looks at ``term.lost`` and at `stop` itself.

        Args:
            name: as for `lock`, which is what a leader has; ``max_hold`` does not count.
            lead: called in this thread. Its exception gives the leadership up, and is raised here.
            stop: a `threading.Event` that ends the campaign, within about a second if it waits; default None: never.
            ttl: as for `lock`. A dead leader is followed within this time and about a second.
            note: as for `lock`.
            on_lost: as for `lock`.

        Raises:
            TypeError, ConfigurationError, ClientClosedError: as `lock` and `Lock.acquire`.
        """
        from relock.election import campaign

        campaign(partial(self.lock, name, ttl=ttl, note=note), lead, stop, on_lost)

    # Looking --------------------------------------------------------------------------------------------------------

    def info(self, name: str) -> LockInfo:
        """Return the holder and the waiters of a lock, as a quorum of the masters agree on them.

        Raises:
            QuorumError: too few masters answered.
        """
        spec, session = self._spec_of(name), self._session
        return self._agree(name, session.run(inspect_flows.look(spec, session.clock)))

    def _agree(self, name: str, answers: inspect_flows.MasterReplies) -> LockInfo:
        """Return the lock's state by the `answers` to a look; raise `QuorumError` if too few masters answered."""
        self._session.raise_pending_warnings(stacklevel=4)
        info = inspect_flows.agree(name, answers)
        if info is None:
            raise too_few_answered(name, answers, self._session.quorum)
        return info

    def force_release(self, name: str) -> bool:
        """End any hold of `name`, as `Lock.force_release` does.

        Raises:
            QuorumError: too few masters answered.
        """
        spec, session = self._spec_of(name), self._session
        since = session.clock()
        released, answers = session.run(inspect_flows.force_release(spec, session.clock))
        if released:
            session.reports.forced(name, since)
        session.raise_pending_warnings()
        check_answered(name, answers, session.quorum)
        return bool(released)

    def names(self, pattern: str = "*", kind: str | None = None) -> Iterator[str]:
        """Iterate over the names that are held or waited for on any master, in no order, each once.

        Args:
            pattern: a glob for the whole name, as in Redis: ``*``, ``?`` (one byte), ``[ab]``, ``[a-c]``, ``[^ab]``; a
                backslash escapes the next character. Default: all names.
            kind: ``"lock"``, ``"semaphore"`` or ``"latch"``, for the names of these only; default None: all.

        Raises:
            ConfigurationError: the pattern has no UTF-8 form, or there is no such kind.
            QuorumError: too few masters answered. A lock that changes meanwhile may be listed or not.
        """
        from relock._names import each_once, find_names

        return each_once(name for name, _ in find_names(self._session, pattern, kind))

    def check(self) -> tuple[str, ...]:
        """Connect, and return the faults of the masters, in words; empty if all is well.

        If a quorum answers, a master that does not answer is one of the faults.

        Raises:
            QuorumError: too few masters answered.
            ConfigurationError: a master can't be used at all, or two are the same server.
        """
        from relock._doctor.check import look_at_all

        failures = look_at_all(self._session, self._options)
        answered = len(self._session.masters) - len(failures)
        if answered < self._session.quorum:
            raise quorum_error(None, failures, self._session.quorum, answered)
        self._session.raise_pending_warnings()
        problems = [text for master in self._session.masters for text in master.facts.problems.values()]
        return (*problems, *(f"{failure.master}: {failure.why}" for failure in failures))

    def statistics(self) -> "Statistics":
        """Return the counts so far, and the state of each master; no I/O."""
        from relock._statistics import statistics_of

        return statistics_of(self._session)

    # The end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the watchdog, the waits and relock's own connections; may be called again.

        Holds are not released: they end with their leases, and a later `Lock.release` ends them locally.
        """
        closing.close(self._session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A client without a session has refused its arguments.
        text = f"unclosed {self!r}: close it" if hasattr(self, "_session") else ""
        if text and closing.drop(self._session):
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __reduce__(self) -> Never:
        raise TypeError("a Client can't be pickled: make one in each process")

    def __repr__(self) -> str:
        state = "closed" if self._session.closed else "open"
        return f"<{state} relock.Client of {', '.join(self._addresses)}>"

    def _after_fork(self) -> None:
        """Begin a fresh session in the child, which has neither the parent's holds nor its connections."""
        parents, self._session = self._session, Session(self._nodes, self._options, self._platform)
        self._session.take_over(parents)
        closing.abandon_in_child(parents)


def _after_fork_in_child() -> None:
    for client in _clients:
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


GetClient = Callable[[], Client]


@overload
def synchronized(
    get_client: GetClient, template: str, *, skip: Literal[False] = False, **lock_options: Unpack[LockArguments]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def synchronized(
    get_client: GetClient, template: str, *, skip: bool, otherwise: None = None, **lock_options: Unpack[LockArguments]
) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
@overload
def synchronized(
    get_client: GetClient, template: str, *, skip: bool, otherwise: T, **lock_options: Unpack[LockArguments]
) -> Callable[[Callable[P, R]], Callable[P, R | T]]: ...
def synchronized(
    get_client: GetClient,
    template: str,
    *,
    skip: bool = False,
    otherwise: Any = None,
    **lock_options: Unpack[LockArguments],
) -> Any:
    """Return the decorator of `Client.synchronized` for a client made later: a factory's, or one in each test.

    Args:
        get_client: returns the `Client`; each call of the decorated function calls it.
        template: the lock's name, as for `Client.synchronized`.
        skip: True: do not call the function if another owner has the lock, as for `Client.synchronized`; default False.
        otherwise: what the caller gets in place of a result then; default None. Only with ``skip=True``.
        lock_options: as for `Client.lock`.

    Raises:
        ConfigurationError: as for `Client.synchronized`; calling the function raises it for a ttl above the guard.
        TypeError: as for `Client.synchronized`; also if `get_client` is no function, or returns no client.
    """
    from relock._synchronized import decorator

    if not callable(get_client):
        raise TypeError(
            f"synchronized takes a function that returns the client, not {get_client!r}; where there is a client "
            "already, write @client.synchronized(...)"
        )
    options = checked(template, skip, otherwise, lock_options, LockArguments)
    check_lock_options(options)

    def lock_of(name: str) -> Lock:
        client = get_client()
        if not isinstance(client, Client):
            raise TypeError(f"synchronized: {get_client!r} returned no relock.Client, but {client!r}")
        return client.lock(name, **options)

    return decorator(template, lock_of, skip, otherwise)
