"""Limits of the referee's judgement in a run whose clocks are set, run off or stand still.

relock assumes something of clocks (``docs/internals/argument.md``, A2 to A4 and A10), and says what it does not promise
if that fails. Each exception here is one of those, and names it. There is none for a step that a client has noticed:
its holds must end when they do by the masters' time.
"""

from collections import defaultdict
from collections.abc import Sequence

from attrs import define, field, frozen

from relock._core.clocks import STEP_SECONDS
from relock._core.hold import Hold
from relock._core.master_facts import MasterFacts, News, Stepped
from relock._core.quorum import NEVER, deadline_of, quorum_of
from relock._runtime.session.session import Session
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World

SAME_STEP_SECONDS = 6.0  # within which a client may take steps of several masters for one of its own clock
LOOKED_SECONDS = 0.5  # from a step until some client has looked at that clock
ACCUSED_SECONDS = 1.0  # from that look until the master has lost its vote, if nothing else goes wrong
PLAIN_STEP_SECONDS = 0.3  # a step that no client can miss which knew the clock


@frozen(eq=False)
class TrueStep:
    """A step of a master's clock, by so many seconds.

    Attributes:
        doubts: for each client that knew the clock before, the seconds by which the clock might have been ahead of what
            the client knew.
    """

    server: int
    at: float
    seconds: float
    doubts: dict[str, float]


@frozen
class Notice:
    """Notice at the true time `at`: a client saw that a master's clock had moved by `seconds` since the last look."""

    at: float
    seconds: float


@define
class Early:
    """The stalls of a client's clock before it knew the clocks of a quorum: it can't tell which clock moved (A4).

    Attributes:
        since: the true time at which each such stall began.
        masters: those that may yet show the client its own step as theirs; each does so once.
    """

    since: list[float] = field(factory=list)
    masters: set[int] = field(factory=set)

    def is_shown(self, process: Process, seconds: float) -> bool:
        """Return whether the process's clock has stood still for `seconds`, counted from the beginning of any stall."""
        return any(abs(seconds - process.stood_still(at)) <= STEP_SECONDS for at in self.since)


@define
class Clocks:
    """History of all clocks: the steps of each, and the clients that have noticed them.

    Attributes:
        has_forgotten: whether any master may have forgotten tokens.
    """

    world: World
    servers: Sequence[Server]
    guard: float
    steps: list[TrueStep] = field(factory=list)
    has_forgotten: bool = False
    _noticed: defaultdict[tuple[str, int], list[Notice]] = field(factory=lambda: defaultdict(list))
    _sessions: list[tuple[Process, Session]] = field(factory=list)
    _peaks: dict[int, float] = field(factory=dict)  # the latest time that a clock showed before it was set back
    _spread: float = 0.0  # at most, between two masters' clocks
    _early: defaultdict[str, Early] = field(factory=lambda: defaultdict(Early))  # by client
    _undecided: dict[tuple[str, int], float] = field(factory=dict)  # when a master showed a client its own step

    def meet(self, process: Process, session: Session) -> None:
        """Add a client, and note each step that it notices."""
        tell = session.reports.hear
        self._sessions.append((process, session))

        def hear(facts: MasterFacts, news: News) -> None:
            if not isinstance(news, Stepped):
                tell(facts, news)
                return
            ahead, seconds = self.servers[facts.index].clock() - process.local(), news.seconds
            notice = Notice(self.world.now, seconds)
            early = self._early[process.name]
            if facts.index in early.masters and early.is_shown(process, seconds):
                early.masters.remove(facts.index)
                self._undecided[process.name, facts.index] = self.world.now
            self.world.note(process.name, f"sees the clock of master-{facts.index} step by {seconds:+.3f} s")
            is_latest = ahead <= facts.offset.high + STEP_SECONDS  # else the clock moved again after this reply
            try:
                tell(facts, news)
            finally:
                if is_latest:  # not earlier: `tell` may hold this thread up, while other threads still believe
                    self._noticed[process.name, facts.index].append(notice)

        session.reports.hear = hear  # type: ignore[method-assign]

    def stands_still(self, process: Process) -> None:
        """Note that the clock of a client is about to stand still with its machine."""
        every = range(len(self.servers))
        known = sum(process.name in self._doubts(number) for number in every)
        if known < quorum_of(len(self.servers)):
            early = self._early[process.name]
            early.since.append(self.world.now)
            early.masters.update(every)
        else:
            self._early.pop(process.name, None)

    def step(self, number: int, seconds: float) -> TrueStep:
        """Set the clock of a master."""
        server = self.servers[number]
        step = TrueStep(number, self.world.now, seconds, self._doubts(number))
        self.steps.append(step)
        if seconds < 0:
            self._peaks[number] = max(server.clock(), self._peaks.get(number, 0.0))
        server.step(seconds)
        shown = [server.clock() for server in self.servers]
        self._spread = max(self._spread, max(shown) - min(shown))
        return step

    def _doubts(self, number: int) -> dict[str, float]:
        server = self.servers[number]
        doubts = {}
        for process, session in self._sessions:
            facts = session.masters[number].facts
            offset, now = facts.offset, process.local()
            knows = facts.incarnation.startswith(server.master.incarnation.encode()) and offset.low > float("-inf")
            if knows and not process.is_dead:
                widened = offset.drift_factor * (now - offset.seen_at)
                doubts[process.name] = offset.high + widened - (server.clock() - now)
        return doubts

    # Exclusion ------------------------------------------------------------------------------------------------------

    def is_deceived(self, process: Process, hold: Hold, since: float, other: Process) -> bool:
        """Return whether a client believes in a hold only for a reason that it could not know, or not yet.

        * Its own clock stood still with its machine (A4), and it has not heard from the masters since.
        * The clock of a lone master was set ahead (A3), and the client has not heard from that master since. Or the
          clocks of a quorum were set at about the same time, which looks like a step of the client's own clock. If they
          were set back before the client looked, or while its own clock stood still, it saw only the difference, and
          believes until they answer for the hold.
        * A minority of the masters was set ahead before the `other` client had ever seen them, or by so little that the
          other could not notice (A3: "what is not promised").
        """
        if deadline_of(hold.lease_ends, hold.quorum) <= process.local():
            return False  # by the client's own clock the hold is over: no other clock excuses a belief
        noticed = [[one for one in self._noticed[process.name, i] if one.at >= since] for i in range(len(self.servers))]
        late = [notices[-1].at if notices else since for notices in noticed]
        ahead = [self._ahead(i, late[i]) for i in range(len(self.servers))]
        lately = min(since, self.world.now - SAME_STEP_SECONDS)
        is_majority = len({step.server for step in self.steps if step.at >= lately}) >= quorum_of(len(self.servers))
        ends = [end - process.stood_still(late[i]) for i, end in enumerate(hold.lease_ends)]
        left = deadline_of(ends, hold.quorum) - process.local()  # until when it would believe if its clock had gone on
        ends = [
            end - sum(step.seconds for step in ahead[i] if is_majority or self._is_hidden(step, other, left))
            for i, end in enumerate(ends)
        ]
        if is_majority:
            ends = [
                NEVER if self._has_ended_unseen(i, hold.lease_ends[i], since, noticed[i], process) else end
                for i, end in enumerate(ends)
            ]
        return deadline_of(ends, hold.quorum) <= process.local()

    @property
    def set_back(self) -> float:
        """The seconds by which masters' clocks were set back, in all: what a master keeps may last longer by them."""
        return sum(max(0.0, -step.seconds) for step in self.steps)

    def leases_last_until(self, longest: float) -> float:
        """Return the true time until which leases of `longest` seconds may last if a master's clock was set back."""
        moments = [NEVER]
        for number in range(len(self.servers)):
            back = [step for step in self.steps if step.server == number and step.seconds < 0]
            if back:
                moments.append(back[-1].at - sum(step.seconds for step in back) + longest)
        return max(moments)

    def _ahead(self, number: int, since: float) -> list[TrueStep]:
        return [step for step in self.steps if step.server == number and step.at >= since and step.seconds > 0]

    def _has_ended_unseen(self, number: int, end: float, since: float, notices: list[Notice], process: Process) -> bool:
        """Return whether a lease was over by a clock that was set back before this client looked at the clock again.

        That clock had been set ahead, or the client's own clock had stood still with its machine (A4). A lease that the
        client asked for afterwards does not count.
        """
        froms = [since, *(notice.at for notice in notices)]
        for looked_at, notice in reversed(list(zip(froms, notices, strict=False))):
            end += max(0.0, notice.seconds)  # as the client counted the lease before this notice
            ahead = 0.0
            for step in self.steps:
                if step.server != number or not looked_at <= step.at <= notice.at:
                    continue
                set_at = process.showed(step.at)
                lost = process.stood_still_between(looked_at, step.at)
                if step.seconds < 0 and end - ahead - lost <= set_at and end - self.guard <= set_at:
                    return True
                ahead += step.seconds
        return False

    def _is_hidden(self, step: TrueStep, client: Process, overlap: float) -> bool:
        """Return whether the client did not know the clock, or too roughly to notice a step of `overlap` seconds."""
        doubt = step.doubts.get(client.name)
        return doubt is None or overlap <= STEP_SECONDS + max(0.0, doubt) + 0.01 * (self.world.now - step.at) + 0.01

    # Tokens ---------------------------------------------------------------------------------------------------------

    def may_tokens_fall(self) -> bool:
        """Return whether a clock shows less than before a step back, or masters forgot with clocks far apart (A10)."""
        is_behind = any(self.servers[number].clock() < peak for number, peak in self._peaks.items())
        return is_behind or (self.has_forgotten and self._spread >= self.guard)

    # Votes ----------------------------------------------------------------------------------------------------------

    def is_accused_wrongly(self, number: int) -> bool:
        """Return whether a master lost its vote though neither its clock nor those of a quorum were ever set.

        A client may accuse a master wrongly if its own clock stood still with its machine before it knew the clocks of
        a quorum (A4): then it can't know which clock moved.
        """
        server, stepped = self.servers[number], {step.server for step in self.steps}
        is_quorum_steady = len(self.servers) - len(stepped) >= quorum_of(len(self.servers))
        undecided_at = self._undecided.get((server.accused_by, number), float("-inf"))
        if server.accused_at == float("-inf") or 0 <= server.accused_at - undecided_at <= ACCUSED_SECONDS:
            return False
        return number not in stepped and is_quorum_steady

    def is_evident(self, step: TrueStep) -> bool:
        """Return whether no client can take the step for one of its own clock, or for one of several steps."""
        others = [one for one in self.steps if one is not step and abs(one.at - step.at) < SAME_STEP_SECONDS]
        stalls = any(process.stood_still(step.at - SAME_STEP_SECONDS) for process, _ in self._sessions)
        return abs(step.seconds) >= PLAIN_STEP_SECONDS and not others and not stalls and len(self.servers) > 1

    def witnesses(self, step: TrueStep) -> list[Process]:
        """Return the processes that knew a clock before it was set, and have asked that master since."""
        asked = self.servers[step.server].asked_at
        return [
            process
            for process, _ in self._sessions
            if step.doubts.get(process.name, 1.0) < STEP_SECONDS
            and asked.get(process.name, 0.0) > step.at
            and not process.is_dead
        ]
