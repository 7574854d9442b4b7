"""Several flows as one: what they ask the masters at the same time goes there in one batch."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from relock._core.call_record import CallFlow
from relock._core.effects import Answer, Ask, Exchange, Failure, Reply
from relock._errors import RelockError


class Share(Sequence[Answer]):
    """Answers to some of the calls of an `Ask`: a view, in which answers that come late replace those before.

    What it returns for a master is a list of that moment.

    Args:
        answers: the answers to all calls.
        places: which of the calls these are.
    """

    def __init__(self, answers: Sequence[Answer], places: range) -> None:
        self._answers = answers
        self._places = places

    def __getitem__(self, master: Any) -> Any:
        answer = self._answers[master]
        share: list[Reply | Failure] = [answer[place] for place in self._places]
        return share

    def __len__(self) -> int:
        return len(self._answers)


def together(flows: Sequence[CallFlow[Any]]) -> CallFlow[list[Any]]:
    """Run flows side by side: once each has ended or has a request, send all requests as one `Ask`, and go on.

    Every other effect is carried out at once, while the other flows wait. The batch has the latest `until` of its
    requests, so a request may take longer than its own says.

    Return, for each flow, its result or the `RelockError` that ended it. Any other exception ends all flows.
    """
    results: list[Any] = [None] * len(flows)
    answers: Mapping[int, Any] = dict.fromkeys(range(len(flows)))
    while answers:
        requests: dict[int, Ask | Exchange] = {}
        for i, answer in answers.items():
            try:
                step = flows[i].send(answer)
                while not isinstance(step, Ask | Exchange) or step.only is not None:
                    step = flows[i].send((yield step))
            except StopIteration as end:
                results[i] = end.value
            except RelockError as error:
                results[i] = error
            else:
                requests[i] = step
        answers = (yield from _ask(requests)) if requests else {}
    return results


def _ask(requests: Mapping[int, Ask | Exchange]) -> CallFlow[Mapping[int, Sequence[Answer]]]:
    """Send the requests as one; return each flow's share of the answers, which are certain once each share is."""
    asked = list(requests.values())
    calls = [request.calls for request in asked]
    ends = list(accumulate(map(len, calls)))
    places = [range(end - len(own), end) for own, end in zip(calls, ends, strict=True)]

    def is_certain(answers: Sequence[Answer]) -> bool:
        shares = [Share(answers, own) for own in places]
        return all(
            request.is_certain is not None and request.is_certain(share)
            for request, share in zip(asked, shares, strict=True)
        )

    answers: Sequence[Answer] = yield Ask(
        tuple(chain.from_iterable(calls)),
        max(request.until for request in asked),
        is_certain,
        ends=all(request.ends for request in asked),
    )
    return {i: Share(answers, own) for i, own in zip(requests, places, strict=True)}
