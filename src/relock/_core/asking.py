"""Policy of asking masters: which masters are asked, when the outcome is certain, and when a master counts as silent.

A `Round` has the calls that a driver sends to masters. It collects the answers, and tells when they are enough. Drivers
send and receive, on threads or on an event loop. This module does no I/O and reads no clock: drivers pass times in.

A connection takes the next request even while it still owes a reply. So a round goes on after its asker has returned,
and late answers are written into the same list.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from relock._core.effects import Answer, Ask, Exchange, Failure
from relock._core.quorum import quorum_of
from relock._errors import ConfigurationError
from relock._scripts import Call

PATIENT_PART = 0.9  # of the node timeout; a master that has owed a reply for longer is silent
GRACE_SECONDS = 0.01  # extra time to connect to the other masters; added to the time that the quorum took


class Voter(Protocol):
    """Master, as the policy sees it.

    Attributes:
        address: the address, without a password.
        index: the master's number.
        no_reply_yet: the answer to one call until the master replies.
    """

    address: str
    index: int
    no_reply_yet: Answer


class Told(Protocol):
    """Future without a value, on which one asker waits."""

    def done(self) -> bool:
        """Return whether the future has its result, or was cancelled."""

    def set_result(self, result: None, /) -> None:
        """Wake the asker."""


class Carrier(Protocol):
    """Connection to a master that several askers share."""

    def take(self) -> None:
        """Read all replies that have arrived by now."""


V = TypeVar("V", bound=Voter)
V_co = TypeVar("V_co", bound=Voter, covariant=True)


class Round:
    """Calls on their way to masters, and the answers.

    Args:
        asked: the calls, and when to return.
        sent_at: our time before the first byte is sent.
        answers: one for each master, with a `Failure` for each call until the master has answered.
        spared: how many masters need not have answered for the outcome to be certain.
        done: the future that the asker awaits; None if the asker reads the replies itself, or waits no longer.
        carriers: the shared connections that bring the answers.

    Attributes:
        asking: the calls go to a node that is about to get their slot (``ASK``).
        count: how many calls there are.
        ends: the round ends a hold, a place or a doubt, as `Ask` says.
        is_late: the asker has given masters more time than `until`, because it came late itself.
        is_simple: the round has a single call, with a fixed number of arguments, as nearly every round has.
        missing: how many of the masters that were asked have not answered.
        pack: returns the call of a simple round as bytes, but for the connection's own arguments, with or without
            those of a guard.
        packed: the bytes from `pack`, without a guard and with one, once a master needed them: all masters share them.
        script: the script of the first call.
        until: our time at which a silent master has failed, and after which a creating script is void.
    """

    __slots__ = (
        "_asked",
        "_spared",
        "answers",
        "asking",
        "carriers",
        "count",
        "done",
        "ends",
        "is_late",
        "is_simple",
        "missing",
        "pack",
        "packed",
        "script",
        "sent_at",
        "until",
    )

    def __init__(
        self,
        asked: Ask | Exchange,
        sent_at: float,
        answers: list[Answer],
        *,
        spared: int = 0,
        done: Told | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> None:
        if isinstance(asked, Exchange):
            request, keys, owner, *_ = asked
            self.script, self.count, self.is_simple = request.script, 1, True
            self.pack = partial(request.pack, keys, owner, b"")
        else:
            first, self.count = asked.calls[0], len(asked.calls)
            self.script, self.is_simple = first.script, self.count == 1 and not first.rest_count
            self.pack = partial(first.pack, b"")
        self._asked = asked
        self._spared = spared
        self.answers = answers
        self.asking = self.is_late = False
        self.done = done
        self.ends = asked.ends
        self.missing = len(answers)
        self.packed: list[bytes | None] = [None, None]
        self.sent_at = sent_at
        self.until = asked.until
        self.carriers = carriers

    @property
    def calls(self) -> Sequence[Call]:
        """Calls of the round; made anew if they come from a prepared request."""
        return self._asked.calls

    @property
    def is_awaited(self) -> bool:
        """True if an asker on a shared connection still waits for the answers.

        False if each caller has a connection to itself meanwhile: a caller that sends its next request on such a
        connection no longer waits for this round.
        """
        return self.done is not None and not self.done.done()

    @property
    def is_certain(self) -> bool:
        """True if the missing answers can't change the outcome."""
        is_certain = self._asked.is_certain
        return self.missing <= self._spared and is_certain is not None and is_certain(self.answers)

    def answered(self, index: int, answer: Answer) -> None:
        """Note the answer of master number `index`; wake the asker if all have answered or the outcome is certain."""
        self.answers[index] = answer
        self.missing -= 1
        done = self.done
        if done is not None and not done.done() and (not self.missing or self.is_certain):
            done.set_result(None)

    def send_by_asking(self) -> None:
        """Have the calls sent with ``ASKING``, to a node that is about to get their slot."""
        self.asking, self.is_simple = True, False

    def awaits(self, master: Voter) -> None:
        """Note that the master is about to be asked: from here on it may have run the calls."""
        self.answers[master.index] = (*master.no_reply_yet,) * self.count

    def fail(self, master: Voter, failure: Failure) -> None:
        """Note that the master was not asked, or does not answer."""
        self.answers[master.index] = (failure,) * self.count

    def miss(self, master: Voter, failure: Failure) -> None:
        """Note that a master which has not answered yet will not answer."""
        if any(isinstance(reply, Failure) and reply.awaited for reply in self.answers[master.index]):
            self.answered(master.index, (failure,) * self.count)

    def spare(self, masters: int) -> int:
        """Let the outcome be certain without the answers of so many masters; return the number before."""
        before, self._spared = self._spared, masters
        if self.is_certain:
            self.wake()
        return before

    def wake(self) -> None:
        """Wake the asker, which goes on with the answers that have come by now."""
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


class Part(NamedTuple, Generic[V_co]):
    """Part of a request: the masters that one round asks.

    Attributes:
        masters: the masters.
        round: the round.
    """

    masters: Sequence[V_co]
    round: Round


class Way(Protocol[V_co]):
    """Way of the calls of an `Ask` to those that must be asked.

    Attributes:
        answers: one of each master of the panel.
    """

    answers: list[Answer]

    def parts(self, now: float) -> Sequence[Part[V_co]]:
        """Return what must be asked next; nothing once all is asked."""


class Panel(Generic[V]):
    """Masters that decide together.

    Attributes:
        knows_way: True if `route` asks nobody.
        masters: all of them, in their order.
        quorum: how many of them decide.
    """

    knows_way: bool = True

    def __init__(self, masters: Sequence[V]) -> None:
        self.masters = masters
        self.quorum = quorum_of(len(masters))

    def route(self, asked: Ask | Exchange, *, strict: bool) -> Way[V]:  # noqa: ARG002
        """Return the way of the calls to the masters: every master is asked all calls.

        Raises:
            ConfigurationError: it is known already that this can't work, and the calls are `strict`.
        """
        return Direct(self, asked)

    def is_enough(self, connected: int, asked: int) -> bool:
        """Return whether `connected` masters, of those that are `asked`, are enough to go on without the others.

        A quorum is enough. If only some masters are asked, any number is.
        """
        return connected >= self.quorum or asked < len(self.masters)


class Direct(Generic[V]):
    """Way of the calls of an `Ask` to each of its masters.

    Attributes:
        answers: one answer for each master, also for those that are not asked.
    """

    answers: list[Answer]

    def __init__(self, panel: Panel[V], asked: Ask | Exchange) -> None:
        self._panel = panel
        self._asked: Ask | Exchange | None = asked

    def parts(self, now: float) -> Sequence[Part[V]]:
        """Return the parts to ask next: first a single part, then none."""
        asked, self._asked = self._asked, None
        if asked is None:
            return ()
        masters, quorum = self._panel.masters, self._panel.quorum
        self.answers = [master.no_reply_yet for master in masters]
        round_ = Round(asked, now, self.answers, spared=len(masters) - quorum)
        if round_.count > 1:
            self.answers[:] = [(*answer,) * round_.count for answer in self.answers]
        if asked.only is not None:
            for master in masters:
                if master.index not in asked.only:
                    round_.fail(master, Failure(master.address, "it was not asked", sent=False))
            masters = [master for master in masters if master.index in asked.only]
            round_.missing = len(masters)
        return (Part(masters, round_),)


def check_usable(errors: Iterable[ConfigurationError | None]) -> None:
    """Raise the first error, if any: each says why a server can be no master of this client."""
    for error in errors:
        if error is not None:
            raise error


def grace_seconds(took: float) -> float:
    """Return for how long a round waits to connect to the other masters, if it `took` so long to connect to a quorum.

    Without this wait, a quorum would grant a first hold before the others are connected, because connecting takes
    longer than an answer. The others would get the hold only after its first renewal.
    """
    return took + GRACE_SECONDS
