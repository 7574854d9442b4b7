"""Policy of asking masters: which of them are asked, when the outcome is certain, and what is given up.

A `Round` is what a driver sends to masters; it notes what they answer, and tells when that is enough. Drivers send and
receive, on threads or on an event loop. Here is no I/O and no clock: drivers pass the moments in.

A connection that still owes a reply takes the next request behind the one before. So a round goes on after its asker
has what it needs: late answers are written into the same list.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from relock._core.effects import Answer, Ask, Exchange, Failure
from relock._core.quorum import quorum_of
from relock._errors import ConfigurationError
from relock._scripts import Call

PATIENT_PART = 0.9  # of the node timeout; a master that has owed a reply for longer is silent
GRACE_SECONDS = 0.01  # what a first connection may take longer than a quorum of the others, beside as long again


class Voter(Protocol):
    """Master, as the policy sees it.

    Attributes:
        address: the address, without a password.
        index: the master's number.
        no_reply_yet: the answer to one call until there is another.
    """

    address: str
    index: int
    no_reply_yet: Answer


class Told(Protocol):
    """Future that is told once."""

    def done(self) -> bool:
        """Return whether it was told, or nobody awaits it any more."""

    def set_result(self, result: None, /) -> None:
        """Tell it."""


class Carrier(Protocol):
    """Carrier of requests to a master, which several askers share."""

    def take(self) -> None:
        """Take all that has come by now."""


V = TypeVar("V", bound=Voter)
V_co = TypeVar("V_co", bound=Voter, covariant=True)


class Round:
    """Calls on their way to masters, and the answers.

    Args:
        asked: the calls, and when to return.
        sent_at: our time before the first byte is sent.
        answers: one for each master, with a `Failure` for each call until it has answered.
        spared: how many masters need not have answered for the outcome to be certain.
        done: what the asker awaits; None where it reads the replies itself, and once nobody awaits any.
        carriers: what brings the answers, where others use these as well.

    Attributes:
        asking: the calls go to a node that is about to get their slot (``ASK``).
        count: how many calls there are.
        ends: the round ends something, or makes it sure, as `Ask` says.
        is_late: the asker has given masters more time than `until`, because it came late itself.
        is_simple: it is a single call, with a fixed number of arguments: nearly every round is.
        missing: how many of the masters that were asked have not answered.
        pack: returns the call of a simple round as bytes, but for what the connection adds, with a guard or without.
        packed: what `pack` has returned for one master, without a guard and with one: the same for all.
        script: that of its first call.
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
        """Calls of the round, made anew of a prepared request."""
        return self._asked.calls

    @property
    def is_awaited(self) -> bool:
        """True if the asker waits for the answer, though others may have sent requests behind the round.

        False where a connection is one caller's at a time: a caller that sends something behind a round does not wait
        for that round.
        """
        return self.done is not None and not self.done.done()

    @property
    def is_certain(self) -> bool:
        """True if the answers that are missing can't change the outcome."""
        is_certain = self._asked.is_certain
        return self.missing <= self._spared and is_certain is not None and is_certain(self.answers)

    def answered(self, index: int, answer: Answer) -> None:
        """Note the answer of master number `index`; wake the asker if it has what it needs now."""
        self.answers[index] = answer
        self.missing -= 1
        done = self.done
        if done is not None and not done.done() and (not self.missing or self.is_certain):
            done.set_result(None)

    def send_by_asking(self) -> None:
        """Have the calls sent with ``ASKING``, to a node that is about to get their slot."""
        self.asking, self.is_simple = True, False

    def awaits(self, master: Voter) -> None:
        """Note that the master is about to be asked: from here on it may have run the calls, whatever failed before."""
        self.answers[master.index] = (*master.no_reply_yet,) * self.count

    def fail(self, master: Voter, failure: Failure) -> None:
        """Note that the master was not asked, or does not answer."""
        self.answers[master.index] = (failure,) * self.count

    def miss(self, master: Voter, failure: Failure) -> None:
        """Note that the master does not answer any more, if it has not answered: it owes a reply, or was not asked."""
        if any(isinstance(reply, Failure) and reply.awaited for reply in self.answers[master.index]):
            self.answered(master.index, (failure,) * self.count)

    def spare(self, masters: int) -> int:
        """Let the outcome be certain without the answers of so many masters; return of how many it could be before."""
        before, self._spared = self._spared, masters
        if self.is_certain:
            self.wake()
        return before

    def wake(self) -> None:
        """Wake the asker, which goes on with what has been answered by now."""
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


class Part(NamedTuple, Generic[V_co]):
    """Part of what is asked, which some masters are asked together.

    Attributes:
        masters: the masters that are asked.
        round: how they are asked.
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
        """Return the way of the calls to the masters: each is asked all of them.

        Raises:
            ConfigurationError: it is known already that this can't work, and the calls are `strict`.
        """
        return Direct(self, asked)

    def is_enough(self, connected: int, asked: int) -> bool:
        """Return whether so many of the masters that are `asked` are enough to go on without the others.

        A quorum is enough; where only some masters must be asked, those that are connected are.
        """
        return connected >= self.quorum or asked < len(self.masters)


class Direct(Generic[V]):
    """Way of the calls of an `Ask` to each of the masters that it is for.

    Attributes:
        answers: one of each master, also of those that are not asked.
    """

    answers: list[Answer]

    def __init__(self, panel: Panel[V], asked: Ask | Exchange) -> None:
        self._panel = panel
        self._asked: Ask | Exchange | None = asked

    def parts(self, now: float) -> Sequence[Part[V]]:
        """Return what must be asked next: at first a single part, and then nothing."""
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
    """Raise the first of these errors, each of which says why a server was never a master that can be used."""
    for error in errors:
        if error is not None:
            raise error


def grace_seconds(took: float) -> float:
    """Return for how long a round waits for the other masters, when it `took` so long to connect to a quorum.

    As long again: opening a connection takes longer than an answer. Without this wait, a quorum would grant a first
    hold before the others could be asked, and these would get the hold only with its first renewal.
    """
    return took + GRACE_SECONDS
