"""Effects: the requests of a flow, and the rules that a flow can rely on.

A *flow* is a generator that decides. It yields *effects*, which are plain values, and is sent their results; a
*driver* carries them out: with threads, on an event loop, and in simulations over virtual time. This is the
contract between the two.

* There are seven effects: `Exchange`, `Ask`, `Listen`, `Park`, `Leave`, `Undo`, `Pause`. A call of a user has one step
  more, `Enter` (`relock._core.call_record`). A driver answers each with the type that stands in its docstring. An
  effect that can't be carried out is answered (a master that is down is a `Failure`, a value); only what makes the
  whole call senseless is raised: wrong configuration, a closed client.
* Time and randomness are no effects: a flow gets ``clock`` and ``jitter`` as callables. All times are seconds on
  that one clock, which goes on while the machine is suspended.
* A driver runs a flow to its end. If an exception (an interrupt, a cancellation, a mistake) leaves the run
  instead, the door of the call **undoes what the call's record names** (`relock._core.interrupts`): the hold and the
  place in the queue end, in the background and shielded from further interrupts, and the exception goes on. So a flow
  needs no clean-up clauses of its own for that case, and contains none.
* A reply answers the request that it belongs to, however late it comes, and on whatever thread it is read. It never
  answers a later request. The order in which several masters reply makes no difference.
* Every wait has a timer: no effect lasts longer than its `until`, even if every master is silent. Only the opening of
  a connection to a lone master may add a node timeout for each of its steps. An event loop that comes late adds at most
  as much as it is late, and no more than a node timeout.
* The watchdog, the janitor, and messages for the hub may run between any two steps of a flow.
* A `Listen` or `Park` registers the waiter. The call, or the door of a latch, has the hub forget the waiter in the end.
* No callback of a user runs inside a flow.

`tests/contract` holds each of these on every driver.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from attrs import frozen

from relock._keys import LockKeys
from relock._scripts import Call, Prepared

Clock = Callable[[], float]
Reply = list[Any]


@frozen
class Failure:
    """Failure of one master to give a reply that counts.

    Attributes:
        master: the master's address, without a password.
        why: the reason, in words.
        permanent: patience does not help: a wrong password, a missing right.
        sent: the script may have run, or may still run until its not-after time.
        awaited: a reply may still come.
        no_time: this client had no time, or no free connection, to ask in time: the master itself may be well.
        broken: the connection ended during the request: the request may succeed on another one.
    """

    master: str
    why: str
    permanent: bool = False
    sent: bool = True
    awaited: bool = False
    no_time: bool = False
    broken: bool = False


Answer = Sequence[Reply | Failure]
"""Replies of one master to the calls of an `Ask`, or its failures."""


class Ask(NamedTuple):
    """Send these calls to all masters at once, and return the answers when the outcome is certain.

    Answered with a list of one `Answer` for each master, in their order, at the latest at `until`: a master that is
    silent then is a `Failure`. With `is_certain`, the answers of a quorum are enough as soon as that function returns
    True; later answers are written into the same list. Nothing is ever sent twice, except a script that a master did
    not know.

    With `only`, only the masters with these numbers are asked, if they can be asked at once. For each other master
    there is a `Failure`, and nothing was sent.

    An Ask that `ends` something (a hold, a place, a doubt) is sent even while the client is being closed. If a server
    turns out to be no master, it then counts as silent. For any other Ask, both raise an error.
    """

    calls: tuple[Call, ...]
    until: float
    is_certain: Callable[[Sequence[Answer]], bool] | None = None
    only: frozenset[int] | None = None
    ends: bool = False


class Exchange(NamedTuple):
    """Send one prepared request for `owner` to all masters: the usual step of a call.

    Answered like an `Ask` of that one call: with a list of one `Answer` for each master. Leases and time limits count
    from `sent_at`, the moment at which the flow makes the effect.
    """

    request: Prepared
    keys: LockKeys
    owner: bytes
    sent_at: float
    until: float
    is_certain: Callable[[Sequence[Answer]], bool]
    ends: bool = False
    only: frozenset[int] | None = None

    @property
    def calls(self) -> tuple[Call]:
        """The request for this owner, as the only call of an `Ask`."""
        return (self.request.call(self.keys, self.owner),)


class Listen(NamedTuple):
    """Register `owner` as a waiter for the lock of `keys`, and see that its wake-ups are subscribed to on a quorum.

    Answered with a bool: whether the subscription is confirmed, at the latest at `until`. From then on no
    wake-up for `owner` is missed, also one that comes before its `Park`.
    """

    keys: LockKeys
    owner: bytes
    until: float


class Handed(NamedTuple):
    """Message of one master that a releaser has given a waiter of this client the lock there.

    Attributes:
        master: the master's number.
        owner: the name of the hold, the same on all masters.
        token: the fencing token that this master proposes.
        granted_us: the master's clock at the grant.
        lease: for how many seconds the master keeps the hold.
        begins: the earliest of our times at which the hold may have been granted; minus infinity if not known.
    """

    master: int
    owner: bytes
    token: int
    granted_us: int
    lease: float
    begins: float


class Park(NamedTuple):
    """Sleep until a quorum of the masters have woken `owner` or given it the lock, or until `until`.

    If fewer have, the sleep ends a moment after the first. Meanwhile the driver sends heartbeats for `owner` with its
    `ticket`, one of them at `lease_end`: no master publishes that the holder's lease has ended. Answered with a
    sequence of `Handed`: all that have come for this waiter since it was registered, in any order. When the run ends,
    the driver gives back those that the flow has not accepted. A driver may wake for no reason.
    """

    keys: LockKeys
    owner: bytes
    ticket: int | None
    lease_end: float
    until: float


class Leave(NamedTuple):
    """Stop heartbeats for `owner`, which no longer waits; if one that is under way recreates its place, undo that."""

    owner: bytes


class Undo(NamedTuple):
    """End whatever `owner` may have on any master, in the background. Answered at once with None.

    The undo is sent at once, and again after `until`, when no request of the owner can arrive any more. It is repeated
    until every master has confirmed it or a lease of `ttl` seconds has run out.

    Attributes:
        answers: the answers to an attempt that only silent masters may have granted. If they show by `until` that none
            did, and that the owner's waiter got no place since `ended_us`, no undo is sent.
        keeps_place: the owner's waiter goes on waiting: it keeps its place, or gets it back with its `ticket`.
        ended_us: the time on each master's clock at which it ended the waiter's hold and place; None stands for now.
    """

    keys: LockKeys
    owner: bytes
    ttl: float
    until: float
    answers: Sequence[Answer] | None = None
    keeps_place: bool = False
    ticket: int | None = None
    ended_us: Sequence[float] | None = None


class Pause(NamedTuple):
    """Sleep for so many `seconds`. Answered with None."""

    seconds: float


Effect = Exchange | Ask | Listen | Park | Leave | Undo | Pause
