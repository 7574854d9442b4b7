"""The fan-out over a Cluster: each call goes to the node that serves its lock, and on to where that one sends it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from relock._core.effects import Answer, Ask, Failure, Reply
from relock._errors import ConfigurationError
from relock._runtime.masters.cluster import Cluster, Redirect, Shard
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.fan_out import FanOut
from relock._runtime.masters.round import Round
from relock._runtime.net.slots import slot_of
from relock._runtime.platform import Platform
from relock._scripts import Call

HOPS_MAX = 4  # how often a call is sent on, at most


class GatheredAnswers(Sequence[Reply | Failure]):
    """What was answered to each call of an `Ask` by the node that it went to; what comes later is seen too."""

    def __init__(self, places: list[tuple[list[Answer], int]]) -> None:
        self.places = places  # for each call, a round's answers, and which of them

    def __getitem__(self, place: Any) -> Any:
        answers, nth = self.places[place]
        return answers[0][nth]

    def __len__(self) -> int:
        return len(self.places)


class Part:
    """The calls of an `Ask` that go to one node."""

    def __init__(self, shard: Shard, places: list[int], *, asking: bool) -> None:
        self.shard = shard
        self.places = places  # which calls of the `Ask` these are
        self.asking = asking
        self.round: Round
        self.connections: list[Connection] = []  # the one that it goes over, while that is sound

    def begin(self, calls: Sequence[Call], until: float, now: float) -> None:
        """Prepares the round to that node."""
        no_reply_yet: list[Answer] = [(*self.shard.no_reply_yet,) * len(self.places)]
        self.round = Round([calls[place] for place in self.places], until, now, no_reply_yet)

    def send(self) -> None:
        """Sends the calls, if there is a connection."""
        round_ = self.round
        for connection in self.connections.copy():
            round_.missing = 1
            try:
                if self.asking:
                    connection.request_asking(round_)
                else:
                    connection.request(round_)
            except NETWORK_ERRORS as error:
                self.connections.remove(connection)
                round_.missing = 0
                round_.fail(self.shard, self.shard.broke(connection, error))


class ClusterFanOut(FanOut):
    """As `FanOut`, where the only master is a cluster."""

    def __init__(self, cluster: Cluster, platform: Platform) -> None:
        super().__init__((cluster,), platform)
        self._cluster = cluster

    def ask(self, ask: Ask, *, strict: bool, is_call: bool = True) -> list[Answer]:
        """See `FanOut.ask`; calls that a node sends on are sent on, while there is time.

        What is no call may go to several nodes at once; a call is about one lock, which is on one of them, so that none
        has connections to one node while it waits in the line for another.
        """
        try:
            self._cluster.look(ask.until)
        except NETWORK_ERRORS as error:
            return [(self._cluster.failed(error, sent=False),) * len(ask.calls)]
        except ConfigurationError as error:
            if strict:
                raise
            return [(self._cluster.misconfigured(error),) * len(ask.calls)]
        calls = [call._replace(script=call.script.uncounted) for call in ask.calls]
        answers = GatheredAnswers([([(self._unserved(call),)], 0) for call in calls])
        parts = self._parts(calls)
        for _ in range(HOPS_MAX):
            try:
                self._exchange(parts, calls, ask.until, is_call=is_call)
            except BaseException:  # an interrupt; see `FanOut.ask`
                for connection in [connection for part in parts for connection in part.connections]:
                    connection.close()
                raise
            for part in parts:
                for nth, place in enumerate(part.places):
                    answers.places[place] = part.round.answers, nth
            parts = _sent_on(parts)
            if not parts or self._clock() >= ask.until:
                break
        return [answers]

    def _unserved(self, call: Call) -> Failure:
        why = f"CLUSTERDOWN: no node serves slot {slot_of(call.keys)}"
        return Failure(self._cluster.address, why, sent=False)

    def _parts(self, calls: Sequence[Call]) -> list[Part]:
        places: defaultdict[Shard, list[int]] = defaultdict(list)
        for place, call in enumerate(calls):
            shard = self._cluster.shard_of(call)
            if shard is None:
                self._cluster.may_have_changed()
            else:
                places[shard].append(place)
        return [Part(shard, its, asking=False) for shard, its in places.items()]

    def _exchange(self, parts: Sequence[Part], calls: Sequence[Call], until: float, *, is_call: bool) -> None:
        """Writes to all that are connected, connects to the others and writes to them, and only then reads."""
        now = self._clock()
        unconnected = []
        for part in parts:
            part.begin(calls, until, now)
            shard = part.shard
            connection = None
            if not shard.line.waiting or not is_call:
                connection = shard.check_out(now) if is_call else shard.check_out_own(now)
            if connection is None:
                unconnected.append(part)
            else:
                part.connections.append(connection)
                part.send()
        for i, part in enumerate(unconnected):
            if i and self._clock() >= until:  # those before took all the time that there was
                part.round.fail(part.shard, part.shard.unconnected())
            else:
                self._get((part.shard,), part.round, part.connections, strict=False, is_call=is_call)
                part.send()
        for part in parts:
            if part.connections:
                self._read_one(part.round, part.connections)
        for part in parts:
            self._give_back(part.round, part.connections)


def _sent_on(parts: Sequence[Part]) -> list[Part]:
    """Where the calls must go that nodes have sent on."""
    places: defaultdict[tuple[Shard, bool], list[int]] = defaultdict(list)
    for part in parts:
        for nth, place in enumerate(part.places):
            reply = part.round.answers[0][nth]
            if isinstance(reply, Redirect) and reply.target is not None:
                places[reply.target, reply.asking].append(place)
    return [Part(shard, its, asking=asking) for (shard, asking), its in places.items()]
