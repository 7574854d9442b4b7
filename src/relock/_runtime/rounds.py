"""Rounds: the calls of one `Ask` on their way to all masters at once.

The calls are written to every master before any reply is read, and whoever is ready is read first. A round is over
when its outcome is certain, or its time. A link that still owes its reply goes back to the pool and takes the next
request behind the one before, so that on one connection a release never overtakes its acquire; the late reply then
finds its own round. No thread is switched and no connection opened on the way, while a quorum is connected.
"""

import select
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from redis import exceptions as redis_errors

from relock._core.effects import Answer, Ask, Failure
from relock._core.quorum import quorum_of
from relock._errors import ConfigurationError
from relock._runtime.links import NETWORK_ERRORS, Link, Round
from relock._runtime.masters import Master
from relock._runtime.platform import Platform

PATIENT_PART = 0.9  # of the node timeout; who has owed a reply for longer is silent
LOOK_SECONDS = 0.02  # how often who waits for a connection looks whether another thread has given one back
GRACE_SECONDS = 0.01  # what a first connection may take longer than a quorum of the others, beside as long again


class Rounds:
    """Asks all masters at once."""

    def __init__(self, masters: tuple[Master, ...], platform: Platform) -> None:
        self._masters = masters
        self._platform = platform
        self._clock = platform.clock
        self._quorum = quorum_of(len(masters))
        self._silence: list[Answer] = [master.silence for master in masters]

    def ask(self, ask: Ask, *, strict: bool) -> list[Answer]:
        """What the masters have answered when the outcome is certain; what comes later is written into this list.

        A master that turns out to be none (a replica, say) is a `ConfigurationError` where that is `strict`; for
        whoever gives back or cleans up, or where it was one before, it is one more master that does not answer.
        """
        now = self._clock()
        count = len(ask.calls)
        answers = self._silence.copy()
        if count > 1:
            answers[:] = [(*silence,) * count for silence in answers]
        round_ = Round(ask.calls, ask.until, now, answers)
        masters = self._masters if ask.only is None else self._only(ask.only, answers)
        links: list[Link] = []
        for master in masters:
            link = master.check_out(now)
            if link is not None:
                links.append(link)
        if len(links) < len(masters):
            self._do_without(masters, round_, links, strict=strict)
            round_.sent_at = self._clock()  # opening the others took time, for which nobody here was silent
            if round_.sent_at >= round_.until:
                for link in links:
                    round_.fail(link.master, link.master.asked_late)
        round_.missing = len(links)
        for link in links.copy():
            try:
                link.request(round_)
            except NETWORK_ERRORS as error:
                _drop(round_, links, link, error)
        if len(links) == 1:
            self._read_one(round_, links)
        elif links:
            self._read_whoever_is_ready(round_, links, ask)
        if links:
            self._give_back(round_, links)
        return answers

    # Opening --------------------------------------------------------------------------------------------------------

    def _only(self, numbers: frozenset[int], answers: list[Answer]) -> Sequence[Master]:
        """The masters with these numbers; the others' answers say that they were not asked."""
        for index, master in enumerate(self._masters):
            if index not in numbers:
                answers[index] = (Failure(master.address, "it was not asked", sent=False),) * len(answers[index])
        return [master for master in self._masters if master.index in numbers]

    def _do_without(self, masters: Sequence[Master], round_: Round, links: list[Link], *, strict: bool) -> None:
        """Does without the absent ones of `masters` where the others are enough, else opens links to them first.

        A quorum is enough; and where not all were to be asked, whoever is there.
        """
        absent = _absent(masters, links)
        if len(links) >= self._quorum or len(masters) < len(self._masters):
            self._go_on_without(absent, round_, links, strict=strict)
        elif len(self._masters) == 1:
            self._open_here(absent[0], round_, links, strict=strict)
        else:
            self._open_side_by_side(absent, round_, links, strict=strict)

    def _go_on_without(self, absent: list[Master], round_: Round, links: list[Link], *, strict: bool) -> None:
        for master in absent:
            if strict and master.unfit is not None:
                self._give_back(round_, links)
                raise master.unfit
            master.open_later(None)
            round_.fail(master, master.absence())

    def _open_here(self, master: Master, round_: Round, links: list[Link], *, strict: bool) -> None:
        try:
            links.append(master.open())
        except NETWORK_ERRORS as error:
            round_.fail(master, master.failed(error, sent=False))
        except ConfigurationError as error:
            if strict and not master.was_sound:
                raise
            master.turned_out(error)
            round_.fail(master, master.misconfigured(error))

    def _open_side_by_side(self, absent: list[Master], round_: Round, links: list[Link], *, strict: bool) -> None:
        """Opens links to the absent masters, all at once; when a quorum is there, the others have as long again."""
        reports: SimpleQueue[tuple[Master, Failure | ConfigurationError | None]] = self._platform.queue()
        waiting = dict.fromkeys(absent)  # in their order
        for master in absent:
            master.open_later(reports)
        began, until = self._clock(), round_.until
        while waiting and self._clock() < until:
            try:
                master, trouble = reports.get(timeout=min(LOOK_SECONDS, max(0.0, until - self._clock())))
            except Empty:
                pass
            else:
                if trouble is not None and master in waiting:
                    waiting.pop(master)
                    round_.fail(master, self._judge(master, trouble, round_, links, strict=strict))
            self._pick_up(waiting, links)
            now = self._clock()
            if len(links) >= self._quorum:
                until = min(until, now + (now - began) + GRACE_SECONDS)
        for master in waiting:
            round_.fail(master, master.absence())

    def _judge(
        self, master: Master, trouble: Failure | ConfigurationError, round_: Round, links: list[Link], *, strict: bool
    ) -> Failure:
        """What a master's opener reports, as a `Failure`, unless the caller has to know of a mistake."""
        if isinstance(trouble, Failure):
            return trouble
        if strict:
            self._give_back(round_, links)
            raise trouble
        return master.misconfigured(trouble)

    def _pick_up(self, waiting: dict[Master, None], links: list[Link]) -> None:
        """Takes links to the masters that are waited for: opened for us, or given back by others meanwhile."""
        now = self._clock()
        for master in list(waiting):
            link = master.check_out(now)
            if link is not None:
                waiting.pop(master)
                links.append(link)

    # Sending and reading --------------------------------------------------------------------------------------------

    def _read_one(self, round_: Round, links: list[Link]) -> None:
        link = links[0]
        longest = link.master.node_timeout
        try:
            while round_.missing:
                left = round_.until - self._clock()
                is_short = left < PATIENT_PART * longest
                # Not left to the limit of the socket: that begins anew with each signal that this thread handles.
                if not link.channel.wait(left if is_short else longest):
                    if is_short:
                        return
                    raise redis_errors.TimeoutError("Timeout reading from the master")
                link.receive()
        except NETWORK_ERRORS as error:
            _drop(round_, links, link, error)

    def _read_whoever_is_ready(self, round_: Round, links: list[Link], ask: Ask) -> None:
        poller = self._platform.poller()
        by_fileno = {}
        for link in links:
            poller.register(link.channel.fileno, select.POLLIN)
            by_fileno[link.channel.fileno] = link
        spared = len(self._masters) - self._quorum
        while round_.missing:
            if round_.missing <= spared and ask.is_certain is not None and ask.is_certain(round_.answers):
                return
            ready = poller.poll(max(0.0, round_.until - self._clock()) * 1000)
            if not ready:
                return
            for fileno, _ in ready:
                link = by_fileno[fileno]
                try:
                    link.receive()
                except NETWORK_ERRORS as error:
                    poller.unregister(fileno)
                    _drop(round_, links, link, error)

    def _give_back(self, round_: Round, links: Sequence[Link]) -> None:
        """Returns the links to their pools, but for those whose masters have been silent for too long."""
        now = self._clock()
        for link in links:
            master, owed = link.master, link.owed
            if link.is_retired:
                link.close()
            elif not owed or now - owed[0].sent_at < PATIENT_PART * master.node_timeout or master.is_drained(link, now):
                master.give_back(link, now)
            else:
                round_.fail(master, master.broke(link, redis_errors.TimeoutError("Timeout waiting for a reply")))


def _absent(masters: Sequence[Master], links: Sequence[Link]) -> list[Master]:
    present = {link.master for link in links}
    return [master for master in masters if master not in present]


def _drop(round_: Round, links: list[Link], link: Link, error: BaseException) -> None:
    """A link broke: whatever its master has not answered by now, it does not answer any more."""
    links.remove(link)
    failure = link.master.broke(link, error)
    if link.is_asked(round_):
        round_.missing -= 1
        round_.fail(link.master, failure)
