"""Routes of the calls of an `Ask` to nodes of a Cluster, and on to where those send them. Two drivers do the I/O."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from relock._core.effects import Answer, Failure, Reply
from relock._runtime.masters.cluster import Cluster, Redirect
from relock._runtime.masters.master import Master
from relock._runtime.masters.round import Round
from relock._runtime.net.slots import slot_of
from relock._scripts import Call

HOPS_MAX = 4  # how often a call is sent on, at most


class Part:
    """The calls of an `Ask` that go to one node.

    Attributes:
        places: which calls of the `Ask` these are.
        asking: that node is about to get their slot (``ASK``).
        round: how they are asked; made when they are.
    """

    round: Round

    def __init__(self, shard: Master, places: list[int], *, asking: bool) -> None:
        self.shard = shard
        self.places = places
        self.asking = asking

    def calls_of(self, calls: Sequence[Call]) -> list[Call]:
        """Return the part's calls, of all those of the `Ask`."""
        return [calls[place] for place in self.places]

    @property
    def no_reply_yet(self) -> list[Answer]:
        """Answers of the part's round until the node has answered."""
        return [(*self.shard.no_reply_yet,) * len(self.places)]


class Routed(Sequence[Reply | Failure]):
    """The calls of one `Ask`, on their way through a cluster, and the answers to them; what comes later is seen too.

    Attributes:
        parts: what must be asked next.
    """

    def __init__(self, cluster: Cluster, calls: Sequence[Call]) -> None:
        self.calls = [call._replace(script=call.script.uncounted) for call in calls]
        self.parts: list[Part] = []
        self._answers: list[tuple[list[Answer], int]] = []  # for each call, a round's answers, and which of them
        places: defaultdict[Master, list[int]] = defaultdict(list)
        for place, call in enumerate(self.calls):
            why = f"CLUSTERDOWN: no node serves slot {slot_of(call.keys)}"
            self._answers.append(([(Failure(cluster.address, why, sent=False),)], 0))
            shard = cluster.shard_of(call)
            if shard is None:
                cluster.may_have_changed()
            else:
                places[shard].append(place)
        self.parts = [Part(shard, its, asking=False) for shard, its in places.items()]

    def go_on(self) -> bool:
        """Take the answers to the parts; make parts of calls that nodes sent on, and return whether there are any."""
        places: defaultdict[tuple[Master, bool], list[int]] = defaultdict(list)
        for part in self.parts:
            answers = part.round.answers
            for nth, place in enumerate(part.places):
                self._answers[place] = answers, nth
                reply = answers[0][nth]
                if isinstance(reply, Redirect) and reply.target is not None:
                    places[reply.target, reply.asking].append(place)
        self.parts = [Part(shard, its, asking=asking) for (shard, asking), its in places.items()]
        return bool(self.parts)

    def __getitem__(self, place: Any) -> Any:
        answers, nth = self._answers[place]
        return answers[0][nth]

    def __len__(self) -> int:
        return len(self._answers)
