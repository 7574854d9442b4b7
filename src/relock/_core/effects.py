"""Effects: the requests of a flow, and the rules that a flow can rely on.

A *flow* is a generator that decides. It yields *effects*, which are plain values, and is sent their results; a
*driver* carries them out: with threads, on an event loop, and in simulations over virtual time. This is the
contract between the two.

* There are seven effects: `Exchange`, `Ask`, `Listen`, `Park`, `Leave`, `Undo`, `Pause`. A driver answers each with the
  type that stands in its docstring. An effect that can't be carried out is answered (a master that is down is a
  `Failure`, a value); only what makes the whole call senseless is raised: wrong configuration, a closed client.
* Time and randomness are no effects: a flow gets ``clock`` and ``jitter`` as callables. All times are seconds on
  that one clock, which goes on while the machine is suspended.
* A driver runs a flow to its end. If an exception (an interrupt, a cancellation, a mistake) leaves the run
  instead, the driver **undoes the flow's owner**: its hold and its place in the queue end, in the background and
  shielded from further interrupts, and the exception goes on. So a flow needs no clean-up clauses of its own for
  that case, and contains none.
* A reply answers the request that it belongs to, however late it comes, and on whatever thread it is read; a later
  request never gets it. Replies of several masters mean the same in any order.
* Every wait has a timer: no effect lasts longer than its `until`, even if every master is silent. Only the opening of
  a connection to a lone master may add one node timeout; and an event loop that comes late adds at most as much as it
  is late, and no more than a node timeout.
* What runs beside a flow (the watchdog, the janitor, a message for the hub) may run between any two of its steps.
* What an effect opened (a waiter's registration) belongs to the driver, which closes it when the run ends.
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
    """A master gave no reply that counts, and why.

    Attributes:
        master: its address, without a password.
        why: the reason, in words.
        permanent: no patience mends it: a wrong password, a missing right.
        sent: the script may have run, or may yet run until its not-after time.
        awaited: a reply may still come.
        no_time: this client had no time, or no free connection, to ask it in time: that says nothing of the master.
        broken: the connection ended under the request: another one may do.
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
    """Send these calls to all masters at once, and come back when the outcome is certain.

    Answered with a list of one `Answer` for each master, in their order, at the latest at `until`: a master that is
    silent then is a `Failure`. Where `is_certain` is given, the answers of a quorum are enough as soon as it says so;
    what comes later is written into the same list. Nothing is ever sent twice, but for a script that a master did not
    know.

    Where `only` is given, only the masters with these numbers are asked, if they can be asked at once. For each other
    master there is a `Failure`, and nothing was sent.

    What `ends` something, or makes it sure, is sent also while the client is being closed; and a server that turns out
    to be no master is then one more that does not answer. Else both are errors.
    """

    calls: tuple[Call, ...]
    until: float
    is_certain: Callable[[Sequence[Answer]], bool] | None = None
    only: frozenset[int] | None = None
    ends: bool = False


class Exchange(NamedTuple):
    """Send one prepared request for `owner` to all masters: the usual step of a call.

    Answered as an `Ask` of that one call is: with a list of one `Answer` for each master. Leases and time limits count
    from `sent_at`, the moment of the effect.
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
        """The call that the request is, for this owner, as an `Ask` has it."""
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
    """A releaser has given a waiter the lock on one master, which has told the waiter's client.

    Attributes:
        master: its number.
        owner: the name of the hold, the same on all masters.
        token: the fencing token that this master proposes.
        granted_us: the master's clock at the grant.
        lease: for how many seconds the master keeps it.
        begins: the earliest of our times at which it may have been granted; minus infinity where that is not known.
    """

    master: int
    owner: bytes
    token: int
    granted_us: int
    lease: float
    begins: float


class Park(NamedTuple):
    """Sleep until a quorum of the masters have woken `owner` or given it the lock, or until `until`.

    Where fewer have, that is enough after a moment. Meanwhile the driver sends the heartbeat for `owner` with its
    `ticket`, one of them as soon as the holder's lease ends at `lease_end`, for nobody publishes that. Answered with
    a sequence of `Handed`: all that have come for this waiter, in any order, since it was registered; what a run that
    ends has not made its own of these the driver gives back. A driver may wake for no reason.
    """

    keys: LockKeys
    owner: bytes
    ticket: int | None
    lease_end: float
    until: float


class Leave(NamedTuple):
    """`owner` waits no more: no heartbeat is sent for it from now on, and one that is under way is made good."""

    owner: bytes


class Undo(NamedTuple):
    """End whatever `owner` may have on any master, in the background. Answered at once with None.

    The undo is sent at once, and again after `until`, when no request of the owner can arrive any more. It is repeated
    until every master has confirmed it or a lease of `ttl` seconds has run out.

    Attributes:
        answers: the answers to an attempt that only silent masters may have granted. If they show by `until` that none
            did, and that the owner's waiter got no place since `ended_us`, no undo is sent.
        keeps_place: the owner's waiter goes on waiting: it keeps its place, or gets it back with its `ticket`.
        ended_us: when each master, by its own clock, has ended what it had of the waiter; None stands for now.
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
