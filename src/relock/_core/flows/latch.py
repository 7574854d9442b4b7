"""Arrivals at a latch, and waits until it opens.

A latch only grows, so masters need not agree: a party that any of them names has arrived. The latch is open if all of
them together name enough parties. No single master may know all: of three masters, one may have missed each arrival.
An arrival that a quorum has noted is seen by every look that a quorum answers, unless masters forget it meanwhile.
Forgotten arrivals can only keep the latch closed.

Nobody's lease depends on a latch, so its waiters have no places and no heartbeats: each looks again after some time.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from attrs import frozen

from relock._core.effects import Clock, Effect, Failure, Listen, Park
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.flows.extend import ROUNDS
from relock._core.flows.inspect import MasterReplies, read
from relock._core.lock_spec import ALIVE_MS, lease_ms
from relock._core.patience import Patience
from relock._core.quorum import NEVER, VOID, NoQuorum, is_status, quorum_of
from relock._errors import ConfigurationError
from relock._keys import LATCH, LatchKeys
from relock._scripts import load

NAMES_MAX = 1000
NOBODY = b""


@frozen(eq=False, repr=False)
class LatchSpec:
    """Common part of all requests for one latch; times are seconds.

    Attributes:
        node_timeout: the longest wait for one master in one look.
        patience: for how long a wait goes on without a quorum.
        parties: how many parties must arrive.
        ttl: for how long the masters remember the arrivals after the last one.
    """

    keys: LatchKeys
    masters: tuple[str, ...]
    node_timeout: float
    patience: float
    parties: int
    ttl: float


@frozen
class LatchInfo:
    """State of one latch, by what the masters know together.

    Attributes:
        name: the latch's name.
        parties: how many parties must arrive.
        arrived: the names of those that have, until the latch was open; a party that was not named has the name
            ``<client>:<uuid>``.
    """

    name: str
    parties: int
    arrived: tuple[str, ...]

    @property
    def missing(self) -> int:
        """Number of parties that must still arrive; 0 once the latch is open."""
        return max(0, self.parties - len(self.arrived))

    @property
    def kind(self) -> str:
        """``"latch"``."""
        return LATCH


LatchFlow = Generator[Effect, Any, int | NoQuorum]
"""Flow that returns how many parties are missing, at most; a `NoQuorum` if too few masters answered."""


def arrive(spec: LatchSpec, party: bytes, clock: Clock) -> LatchFlow:
    """Note on all masters that `party` has arrived.

    A request that came too late is repeated once, with a new clock sample.

    Raises:
        ConfigurationError: others want another number of parties.
    """
    call = load("latch_arrive").call(spec.keys, party=party, parties=spec.parties, ttl_ms=lease_ms(spec.ttl))
    for _ in range(ROUNDS):
        replies = yield from read(call, clock() + spec.node_timeout, clock)
        if not any(is_status(reply, b"void") for reply in replies):
            break
    _check_parties(spec, [reply[2] for reply in replies if is_status(reply, b"differs")])  # type: ignore[index]
    counts = [reply[2] for reply in replies if is_status(reply, b"arrived")]  # type: ignore[index]
    if len(counts) < quorum_of(len(replies)):
        return _no_quorum(spec, replies)
    missing: int = spec.parties - max(counts)
    if missing > 0 and (len(counts) < len(replies) or len(set(counts)) > 1):
        seen = yield from look(spec, clock)  # some masters have missed an arrival
        missing = min(missing, judge_look(spec, seen, missing))
    return max(0, missing)


def look(spec: LatchSpec, clock: Clock, waiter: bytes = NOBODY) -> Generator[Effect, Any, MasterReplies]:
    """Ask all masters which parties have arrived; if there is a `waiter`, have it woken when the latch opens."""
    most = 0 if len(spec.masters) == 1 and waiter else NAMES_MAX  # a lone master's count says it all
    call = load("latch_look").call(spec.keys, waiter=waiter, alive_ms=ALIVE_MS, most=most)
    return (yield from read(call, clock() + spec.node_timeout, clock))


def judge_look(spec: LatchSpec, replies: MasterReplies, at_most: int) -> int:
    """Return how many parties are missing by `replies` to a look, `at_most` if none says.

    Raises:
        ConfigurationError: others want another number of parties.
    """
    seen: list[Any] = [reply for reply in replies if isinstance(reply, list)]
    _check_parties(spec, [reply[3] for reply in seen if reply[3]])
    known = {name for reply in seen for name in reply[4]}
    missing: int = min([at_most, spec.parties - len(known), *(spec.parties - reply[2] for reply in seen)])
    return max(0, missing)


def wait(spec: LatchSpec, waiter: bytes, until: float, clock: Clock, jitter: Callable[[], float]) -> LatchFlow:
    """Wait until the latch is open, until `until` at most.

    Raises:
        ConfigurationError: others want another number of parties.
    """
    patience, listens = Patience(spec.patience, waiter, clock, jitter), False
    while True:
        replies = yield from look(spec, clock, waiter if listens and clock() < until else NOBODY)
        missing = judge_look(spec, replies, spec.parties)
        answered = sum(isinstance(reply, list) for reply in replies)
        outcome = None if answered >= quorum_of(len(replies)) else _no_quorum(spec, replies)
        now = clock()
        is_over = patience.is_over(outcome, now) or now >= until
        if missing == 0 or is_over:
            return missing if missing == 0 or outcome is None else outcome
        if not listens:
            listens = True  # then look once more: nobody has woken this waiter until the masters know its name
            yield Listen(spec.keys, waiter, min(until, now + spec.node_timeout))
            continue
        # The waiters of a client look at different times.
        pause = HEARTBEAT_SECONDS * (1 - jitter() / 4) if outcome is None else patience.pause(outcome, listening=True)
        yield Park(spec.keys, waiter, None, NEVER, min(until, now + pause))


def agree(spec: LatchSpec, replies: MasterReplies) -> LatchInfo | None:
    """Return the state of the latch, as the masters know it together; None if too few answer."""
    seen: list[Any] = [reply for reply in replies if isinstance(reply, list)]
    if len(seen) < quorum_of(len(replies)):
        return None
    parties = max([reply[3] for reply in seen]) or spec.parties
    arrived = sorted({name for reply in seen for name in reply[4]})
    return LatchInfo(spec.keys.name, parties, tuple([name.decode(errors="replace") for name in arrived]))


def _check_parties(spec: LatchSpec, wanted: Sequence[int]) -> None:
    """Raise `ConfigurationError` if others want another number of parties."""
    for parties in wanted:
        if parties != spec.parties:
            raise ConfigurationError(
                f"parties={spec.parties}: others wait at the latch {spec.keys.name!r} for {parties} parties",
                lock=spec.keys.name,
                option="parties",
            )


def _no_quorum(spec: LatchSpec, replies: MasterReplies) -> NoQuorum:
    failures = [
        reply if isinstance(reply, Failure) else Failure(master, VOID, sent=False)
        for reply, master in zip(replies, spec.masters, strict=True)
        if isinstance(reply, Failure) or is_status(reply, b"void")
    ]
    return NoQuorum(tuple(failures), len(replies) - len(failures), None)
