"""Routing of calls to the nodes of a Cluster, and on to the nodes that these name: no I/O and no clock.

A node that does not serve a slot (any more) does not run the call, and names the node that does (``MOVED``, ``ASK``).
So the call may be sent on. While keys are being moved, a call may find them on two nodes (``TRYAGAIN``): then the flow
tries again.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from relock._core.asking import Part, Round, Voter
from relock._core.effects import Answer, Ask, Exchange, Failure, Reply
from relock._scripts import Call

HOPS_MAX = 4  # how many nodes a call is sent to, at most


N = TypeVar("N", bound=Voter)


class Routed(Sequence[Reply | Failure], Generic[N]):
    """Calls of one `Ask`, on their way through a Cluster, and a view of their answers that also shows late ones.

    Args:
        asked: the calls.
        node_of: returns the node that serves a call's lock, or the `Failure` if no node is known to serve it.
        sent_on: returns the node to which the failure of a node sends a call on, and if that holds for this call only,
            as the slot is being moved; None where the failure sends the call nowhere.

    Attributes:
        answers: the answers of a single master, which is the whole Cluster.
    """

    def __init__(
        self,
        asked: Ask | Exchange,
        node_of: Callable[[Call], N | Failure],
        sent_on: Callable[[N, Failure], tuple[N, bool] | None],
    ) -> None:
        self._until, self._ends = asked.until, asked.ends
        self._calls = [call._replace(script=call.script.on_cluster) for call in asked.calls]
        self._answers: list[tuple[list[Answer], int]] = []  # for each call, a round's answers, and which of them
        self._next: defaultdict[tuple[N, bool], list[int]] = defaultdict(list)  # by the node, and if it is for ``ASK``
        self._asked: list[tuple[N, Round, list[int]]] = []  # the last parts, and which calls these are
        self._sent_on = sent_on
        self._hops = 0
        self.answers: list[Answer] = [self]
        for place, call in enumerate(self._calls):
            node = node_of(call)
            if isinstance(node, Failure):
                self._answers.append(([(node,)], 0))
            else:
                self._answers.append(([node.no_reply_yet], 0))
                self._next[node, False].append(place)

    def parts(self, now: float) -> Sequence[Part[N]]:
        """Return the parts to ask next: first every call, then those that a node has redirected, while there is time.

        When these parts have been asked, call this again: it reads the answers that have come by then.
        """
        for node, round_, places in self._asked:
            for place, reply in zip(places, round_.answers[0], strict=True):
                target = self._sent_on(node, reply) if isinstance(reply, Failure) else None
                if target is not None:
                    self._next[target].append(place)
        following, self._next, self._asked = self._next, defaultdict(list), []
        if self._hops == HOPS_MAX or (self._hops and now >= self._until):
            return ()
        self._hops += 1
        return [self._part(node, asking, places, now) for (node, asking), places in following.items()]

    def _part(self, node: N, asking: bool, places: list[int], now: float) -> Part[N]:
        ask = Ask(tuple([self._calls[place] for place in places]), self._until, ends=self._ends)
        round_ = Round(ask, now, [(*node.no_reply_yet,) * len(places)])
        if asking:
            round_.send_by_asking()
        self._asked.append((node, round_, places))
        for nth, place in enumerate(places):
            self._answers[place] = round_.answers, nth
        return Part((node,), round_)

    def __getitem__(self, place: Any) -> Any:
        answers, nth = self._answers[place]
        return answers[0][nth]

    def __len__(self) -> int:
        return len(self._answers)
