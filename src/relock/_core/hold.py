"""State of one hold, as this client knows it: no I/O, and the time is passed in.

Safety rests on `Hold.deadline` alone, a number that every use compares with the clock. If the watchdog sleeps too long,
the hold is lost, but no other owner enters while this one still counts as valid.
"""

from collections.abc import Callable, Sequence
from typing import Any

from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Failure, Reply
from relock._core.lock_spec import LockSpec, rest_request, token_ms
from relock._core.quorum import NEVER, Grant, deadline_of, drift_of, is_status
from relock._core.slots import slot_of
from relock._events import Loss, LossCode
from relock._owner import NestedTask, Owner, client_name, has_ticket, task_of, waiter_name
from relock._scripts import Prepared, Script

REASONS = {  # the words of each code, but those that the caller of `Hold.lose` has
    LossCode.EXPIRED: "its lease ended before it could be renewed",
    LossCode.NOT_RENEWED: "its lease ended, and it was not to be renewed (renew=False)",
    LossCode.FORGOTTEN: "the masters no longer know it: deleted, released by force, flushed, or expired there",
    LossCode.FORCED: "it was released by force",
    LossCode.STALLED: "its event loop stands still, for longer than stall_limit",
    LossCode.MAX_HOLD: "max_hold is over, and with it the last lease",
    LossCode.OWNER_ENDED: "its owner ended without releasing it",
}

HANDED_SETTLE_SECONDS = 0.5  # age at which a hold that a releaser gave asks for its full lease; most end sooner
RENEW_PART = 3  # a lease is renewed after a third of its length
RETRY_PART = 10  # a renewal that failed is repeated after a tenth of the lease
AHEAD_PART = 30  # a renewal that is due within a thirtieth of the lease joins an earlier batch
FOREVER = float("inf")


class Hold:
    """Hold of one owner, from its grant to its end.

    Attributes:
        owner: the hold's name on the masters, ``<client>:<uuid>``.
        key: the caller in this process that may use the hold.
        liveness: a weak reference to the thread or task with which the owner ends; None for any other ``owner=``.
        ttl: seconds; later renewals ask for this lease.
        leased: the last lease (s) that a quorum confirmed, if a longer one was asked for since; None: that is the ttl.
        settled: a quorum of masters gave the token, so the release need not write it to the others.
        lease_ends: until when each master surely keeps the lease.
        deadline: D, until when a quorum of the masters surely keeps the lease.
        told_until: the latest D from before a master forgot the hold or its clock stepped: the owner may rely on it.
        ending: the request that ends the hold, prepared but for the owner.
        answers: what each master has answered to the acquire so far.
        loss_hooks: callbacks that cancel code under the lock; a loss calls them at once, and they must not wait.
        count: the hold count.
        wanted: the hold count that the masters must have: the next count as soon as the owner begins to write it.
        renew_at: when the watchdog must renew the hold; infinity for never (again).
        renew_until: when ``max_hold`` is over.
        late_until: until when a request that gives the hold (back) to a master may still arrive there.
        healing_pending: True if a request that gives a master the hold (again) is under way, or was not answered.
        counts_until: until when an older hold count may still arrive at a master.
        settling: True while the janitor writes the count to the masters again.
        is_forced: True once a client says that it has ended the hold by force, unless a quorum still has the hold.
        is_stalled: True while the owner's event loop stands still for too long; the hold is not renewed then.
        is_short: True if a releaser gave the hold with a short lease, and no quorum has confirmed more.
        untold_note: the note, until a quorum confirms a renewal, if a releaser gave the hold without it; else None.
        takes_turns: True if the owner may have several calls under way, which take turns at a gate.
        entered_by: the task that uses the hold, if the owner is a thread that runs an event loop; else None.
        loss: the `Loss`, set once, when the hold is lost.
        at_least: seconds after the grant before which nobody else gets the lock, even if it is released earlier.
        is_used: True once the owner has begun to release a level, and so has worked under the lock.
    """

    __slots__ = (
        "__weakref__",
        "_awaited",
        "_clock_steps",
        "_healed_on",
        "_silent",
        "_unreported",
        "answers",
        "at_least",
        "callbacks",
        "count",
        "counts_until",
        "deadline",
        "ending",
        "entered_by",
        "granted_at",
        "healing_pending",
        "is_forced",
        "is_short",
        "is_stalled",
        "is_used",
        "key",
        "keys",
        "late_until",
        "lease_ends",
        "leased",
        "liveness",
        "loss",
        "loss_hooks",
        "owner",
        "renew",
        "renew_at",
        "renew_until",
        "settled",
        "settling",
        "spec",
        "takes_turns",
        "token",
        "told_until",
        "ttl",
        "untold_note",
        "wanted",
    )

    def __init__(self, spec: LockSpec, owner: bytes, who: Owner, grant: Grant, count: int) -> None:
        options = spec.options
        self.spec = spec
        self.keys = spec.keys
        self.owner = owner
        self.key = who.key
        self.liveness = who.liveness
        self.takes_turns = who.takes_turns
        self.ttl = spec.ttl
        self.leased: float | None = None
        self.token, self.deadline, self.lease_ends, self.settled, self.answers, begins, self.is_short, repeated = grant
        self.healing_pending = repeated
        self.untold_note = None if begins is None else options.note
        self.count = self.wanted = count
        # The hold was not granted before this moment: that of the request, or the earliest of a releaser's grant.
        self.granted_at = granted_at = grant.end - spec.validity if begins is None else begins
        self.renew = options.renew
        self.renew_at = granted_at + spec.ttl / RENEW_PART if options.renew else FOREVER
        if self.is_short:
            self.renew_at = granted_at + HANDED_SETTLE_SECONDS
        self.renew_until = FOREVER if options.max_hold is None else granted_at + options.max_hold
        self.ending = spec.templates.release if self.settled else spec.templates.release_with(self.token, spec.ttl)
        self.late_until = granted_at + spec.node_timeout
        self.callbacks: list[Callable[[Loss], object]] = [] if options.on_lost is None else [options.on_lost]
        self.loss_hooks: list[Callable[[Loss], object]] = []
        self.counts_until = self.told_until = NEVER
        self.settling = False
        self.is_forced = self.is_stalled = False
        self.entered_by: NestedTask | None = None
        self.loss: Loss | None = None
        self.at_least, self.is_used = options.at_least, False
        self._unreported = [True]
        self._clock_steps: dict[int, ClockStep] = {}
        self._healed_on: frozenset[int] = frozenset()
        self._awaited: set[int] = set()  # masters that have not granted the hold yet
        self._silent: set[int] = set()  # the awaited masters that had not answered at all
        if NEVER in self.lease_ends:
            self._awaited = {i for i, end in enumerate(self.lease_ends) if end == NEVER}
            self._silent = {i for i in self._awaited if isinstance(self.answers[i][0], Failure)}

    @property
    def told(self) -> dict[str, Any]:
        """Fields of an event about the hold."""
        keys = self.keys
        return {"lock": keys.name, "kind": keys.kind, "owner": self.owner.decode(), "token": self.token}

    @property
    def quorum(self) -> int:
        """Number of masters that make a quorum."""
        return self.spec.quorum

    @property
    def kept(self) -> int:
        """Number that the masters keep for this owner: the hold count, or the slot of a permit."""
        return self.count if self.spec.templates.kept == "count" else slot_of(self.owner, self.answers)

    @property
    def fence(self) -> int:
        """Token that the release must write to the masters; 0 where a quorum of them gave it."""
        return 0 if self.settled else self.token

    @property
    def due_at(self) -> float:
        """Time at which the watchdog must look at the hold: its renewal or deadline, whichever is first."""
        if self.loss is not None:
            return FOREVER
        return self.renew_at if self.renew_at < self.deadline else self.deadline

    @property
    def lacking(self) -> frozenset[int]:
        """Masters that do not have the hold, as far as is known."""
        return frozenset(master for master, end in enumerate(self.lease_ends) if end == NEVER)

    @property
    def ahead(self) -> float:
        """Seconds by which a renewal may come early, to join a batch; 0 for a hold with a short lease."""
        return 0.0 if self.is_short else self.lease / AHEAD_PART

    @property
    def lease(self) -> float:
        """Seconds for which the hold is granted at a time, as far as is known."""
        if self.is_short:
            return self.deadline - self.granted_at
        return self.ttl if self.leased is None else self.leased

    def ask_for(self, ttl: float) -> None:
        """Have later renewals ask for a lease of `ttl` seconds, if that is longer than before.

        Until a quorum has confirmed the longer lease, renewals come as often as the present one needs.
        """
        if ttl > self.ttl:
            before, self.ttl = self.ttl, ttl
            self.end_with(self.ending.script)
            self.leased = before if self.leased is None else self.leased

    def end_with(self, script: Script) -> None:
        """Have the release send this script, which takes what `release` takes."""
        hand = self.spec.templates.hand
        self.ending = script.prepare(fence=self.fence, token_ms=token_ms(self.ttl), hand=hand)

    @property
    def rest_until(self) -> float:
        """Time until which the lock rests after this hold, and nobody gets it; `NEVER` if there is no rest.

        There is none after a hold that was lost, or that an interrupted acquire has left. The allowance for clocks of
        different rates makes the rest longer, not shorter.
        """
        if not self.at_least or not self.is_used or self.loss is not None:
            return NEVER
        return self.granted_at + self.at_least + drift_of(self.at_least, self.spec.drift_factor)

    def ending_at(self, now: float) -> Prepared:
        """Return the request that ends the hold at `now`, prepared but for the owner; with a rest if it is early."""
        left = self.rest_until - now
        return rest_request(left, self.fence, self.ttl) if left > 0 else self.ending

    def remaining(self, now: float) -> float:
        """Return the seconds for which the hold is surely still valid."""
        return 0.0 if self.loss else max(0.0, self.deadline - now)

    def reason_for_loss(self, now: float) -> LossCode | None:
        """Return why the hold is lost at `now`, or None while it is valid."""
        if now < self.deadline:
            return None
        if self.deadline == NEVER:
            return self.reason_if_absent
        if self.liveness is not None and self.liveness() is None:
            return LossCode.OWNER_ENDED
        if now >= self.renew_until:
            return LossCode.MAX_HOLD
        if self.is_stalled:
            return LossCode.STALLED
        return LossCode.EXPIRED if self.renew or self.is_short else LossCode.NOT_RENEWED

    @property
    def reason_if_absent(self) -> LossCode:
        """Reason for the loss of a hold that a quorum no longer has."""
        return LossCode.FORCED if self.is_forced else LossCode.FORGOTTEN

    def lose(self, code: LossCode, now: float, reason: str | None = None) -> Loss | None:
        """Mark the hold as lost. Return the loss to the first caller only, so that it is reported once."""
        if self.loss is None:  # Act, then tell: after an interrupt between the two, the next caller reports it
            owner, keys, held_for = self.owner.decode(), self.keys, now - self.granted_at
            words = REASONS[code] if reason is None else reason
            self.loss = Loss(keys.name, owner, self.token, self.count, words, held_for, code=code, kind=keys.kind)
        self.renew_at = FOREVER
        try:
            self._unreported.pop()  # `pop` is atomic: of two threads that find the loss, one reports it
        except IndexError:
            return None
        return self.loss

    def belongs_to(self, client: bytes) -> bool:
        """Return whether the owner is, or ends with, a task that can run, and that took the hold as this `client`."""
        return task_of(self.liveness) is not None and client_name(self.owner) == client

    def wants_renewal(self, now: float) -> bool:
        """Return whether the hold is to be renewed by now, or so soon that it may as well join this batch."""
        if self.loss is not None or self.is_stalled or now >= self.renew_until:
            return False
        if self.liveness is not None and self.liveness() is None:
            return False
        return now >= self.renew_at - self.ahead

    def count_renewal(
        self, answers: Sequence[Reply | Failure], sent_at: float, end: float, now: float, ttl: float | None = None
    ) -> bool:
        """Count the answers to a renewal for `ttl` seconds (None: the hold's), whose leases last until `end`.

        Return whether a quorum confirmed the renewal. After the old deadline no reply counts any more: the hold is lost
        by then, and stays so.
        """
        self._count_late_grants()
        is_in_time = now < deadline_of(self.lease_ends, self.quorum)
        extended = self._count_leases(answers, b"extended", sent_at, end) if is_in_time else 0
        self.drop_absent(answers)
        if not is_in_time:
            return False
        if extended >= self.quorum:
            self.is_short, self.untold_note = False, None
            if ttl is None or ttl >= self.ttl:
                self.leased = None
            self.renew_at = sent_at + self.lease / RENEW_PART if self.renew else FOREVER
            return True
        self.retry_renewal(now)
        return False

    def retry_renewal(self, now: float) -> None:
        """Have the next renewal come sooner, because the last one failed."""
        self.renew_at = now + self.lease / RETRY_PART if self.renew or self.is_short else FOREVER

    def drop_absent(self, answers: Sequence[Reply | Failure]) -> None:
        """Stop counting the masters whose answer is *absent*; a silent master still counts.

        A master that answers *counted* or *extended* has granted the hold, even if that grant was not read yet.
        """
        self._count_late_grants()
        for i, answer in enumerate(answers):
            if is_status(answer, b"absent"):
                self.lease_ends[i] = NEVER
            elif i in self._awaited and (is_status(answer, b"counted") or is_status(answer, b"extended")):
                self._count_late_grant(i)
        self._set_deadline()

    def _count_late_grants(self) -> None:
        """Count each grant that came after the acquire had returned with a quorum: a late one is as good as others."""
        if not self._awaited:
            return
        for i in list(self._awaited):
            reply = self.answers[i][0]
            if is_status(reply, b"granted"):
                self._count_late_grant(i)
            elif isinstance(reply, list) or not reply.awaited:
                self._awaited.discard(i)

    def _count_late_grant(self, master: int) -> None:
        """Count a late grant, unless its lease may have begun before the master's clock went ahead, and is shorter."""
        self._awaited.discard(master)
        step, reply = self._clock_steps.get(master), self.answers[master][0]
        if step is None or (is_status(reply, b"granted") and reply[1] >= step.shown_us):  # type: ignore[index]
            self._lengthen(master, self.granted_at + self.spec.validity, step)

    def _count_leases(self, answers: Sequence[Reply | Failure], status: bytes, sent_at: float, end: float) -> int:
        """Note the leases until `end` that masters have given with this `status`; return how many these are."""
        count, steps = 0, self._clock_steps.copy()
        for i, answer in enumerate(answers):
            if is_status(answer, status) and _is_of_now(steps.get(i), answer, sent_at):
                self._lengthen(i, end, steps.get(i))
                count += 1
        return count

    def _lengthen(self, master: int, end: float, known: ClockStep | None) -> None:
        """Note that `master` keeps the lease until `end`, which takes account of the clock step `known`.

        Mark, then look: another thread may note a newer step just now. Either that thread shortens this end, or the
        step is seen here; if both happen, the end is earlier than it need be.
        """
        self.lease_ends[master] = max(self.lease_ends[master], end)
        step = self._clock_steps.get(master)
        if step is not None and step is not known:
            self.lease_ends[master] -= step.seconds

    def _set_deadline(self) -> None:
        """Compute the deadline anew. Mark, then look: of two threads that do so, the last sees what both changed."""
        ends: list[float] = []
        while ends != self.lease_ends:
            ends = self.lease_ends.copy()
            deadline = deadline_of(ends, self.quorum)
            if deadline < self.deadline:  # first: as soon as the deadline is earlier, the hold may be found lost
                self.told_until = max(self.told_until, self.deadline)
            self.deadline = deadline

    def count_healing(self, answers: Sequence[Reply | Failure], sent_at: float, end: float, now: float) -> None:
        """Count the leases of the masters that healing gave the hold to, if the deadline has not passed."""
        self._healed_on = self._healed_on.union([i for i, one in enumerate(answers) if is_status(one, b"healed")])
        if now >= self.deadline:
            return
        self._count_leases(answers, b"healed", sent_at, end)
        self._set_deadline()

    @property
    def undo_after(self) -> float:
        """Time after which a single undo is enough: no request that gives the hold to a master can arrive any more.

        `NEVER` (at once) if the hold was asked for only once, and each master has answered or was not asked.
        """
        is_waiters = waiter_name(self.owner) != self.owner
        may_arrive = any(isinstance(answer[0], Failure) and answer[0].sent for answer in self.answers)
        return self.late_until if self.healing_pending or is_waiters or may_arrive else NEVER

    def may_be_left(self, released: Sequence[Answer]) -> bool:
        """Return whether a master may still have the hold, or get it later, by the answers `released` to its release.

        * A master that confirmed the release no longer has the hold.
        * A master that says *absent* may still get the hold, unless the acquire is known to have failed there.
        * A master that was silent at first, and then gave the waiter a place in the queue, may have done so after the
          release. A master without a vote gives a waiter with a ticket its place, too.
        * A master that did not receive the release keeps what it has: a place from an earlier request, or the hold, if
          by healing. `lease_ends` does not show a healing for sure: an *absent* from before it may be read after it.
        * A healing that is under way may arrive after any of these.
        """
        if self.healing_pending:
            return True
        was_queued = has_ticket(self.owner)
        for i, (attempted, answer, end) in enumerate(zip(self.answers, released, self.lease_ends, strict=True)):
            reply, first = answer[0], attempted[0]
            if is_status(reply, b"released"):
                continue
            if is_status(first, b"granted") or (isinstance(first, Failure) and first.sent):
                return True
            if i in self._silent and (is_status(first, b"queued") or (was_queued and is_status(first, b"no_vote"))):
                return True
            if isinstance(reply, Failure) and (was_queued or end != NEVER or i in self._healed_on):
                return True
        return False

    def shift(self, step: ClockStep) -> None:
        """Note that a master's clock stepped ahead: its lease ends earlier by the `step`."""
        self._count_late_grants()
        # Mark, then look: `_lengthen` looks for the mark after it has written the end.
        self._clock_steps[step.master] = step
        self.lease_ends[step.master] -= step.seconds
        self._set_deadline()


def _is_of_now(step: ClockStep | None, answer: Any, sent_at: float) -> bool:
    """Return whether a lease that a master confirmed has its full length: the `step` of its clock came before it.

    A request that was sent before the step was seen may have been answered before the step.
    """
    return step is None or sent_at > step.seen_at or answer[1] >= step.shown_us
