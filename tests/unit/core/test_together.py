"""Flows that run side by side: what they ask goes to the masters in one batch, and each gets its own answers."""

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from relock import NotOwnedError
from relock._core.call_record import CallFlow
from relock._core.effects import Answer, Ask, Exchange, Failure, Pause
from relock._core.together import Share, together
from relock._keys import lock_keys
from relock._scripts import Call, load

SILENT = Failure("a", "no reply yet", awaited=True)


def call(name: str) -> Call:
    return load("inspect").call(lock_keys("lock", name), limit=1)


def asks(*names: str, until: float = 1.0, ends: bool = False, **options: Any) -> CallFlow[Any]:
    """Ask once for these names; return what was answered."""
    return (yield Ask(tuple(map(call, names)), until, ends=ends, **options))


def step(flow: Generator[Any, Any, Any], answer: Any = None) -> Any:
    """Return the next step of a flow, or its result."""
    try:
        return flow.send(answer)
    except StopIteration as end:
        return end.value


def answered(*masters: Sequence[str | Failure]) -> list[Answer]:
    return [[one if isinstance(one, Failure) else [one.encode()] for one in answers] for answers in masters]


def test_all_requests_of_the_same_time_go_as_one_in_the_order_of_the_flows() -> None:
    flow = together([asks("a"), asks("b", "c"), asks("d")])
    ask = step(flow)
    assert ask.calls == tuple(map(call, "abcd"))
    results = step(flow, answered("1234", "5678"))
    assert [[*result] for result in results] == [answered("1", "5"), answered("23", "67"), answered("4", "8")]


def test_a_prepared_request_is_one_call_of_the_batch() -> None:
    keys, request = lock_keys("lock", "b"), load("release").prepare(fence=0, token_ms=1, hand=1)

    def exchanges() -> CallFlow[Any]:
        return (yield Exchange(request, keys, b"me:1", 0.0, 2.0, lambda _: True, ends=True))

    ask = step(together([asks("a", ends=True), exchanges()]))
    assert ask.calls == (call("a"), request.call(keys, b"me:1"))
    assert (ask.until, ask.ends) == (2.0, True)


def test_flows_that_ask_again_go_on_together_and_those_that_have_ended_are_left_out() -> None:
    def asks_twice(name: str) -> CallFlow[Any]:
        yield from asks(name)
        return (yield from asks(name * 2))

    flow = together([asks_twice("a"), asks("b"), asks_twice("c")])
    step(flow)
    ask = step(flow, answered("123"))
    assert ask.calls == (call("aa"), call("cc"))
    first, second, third = step(flow, answered("45"))
    assert ([*first], [*second], [*third]) == (answered("4"), answered("2"), answered("5"))


def test_an_error_of_one_flow_is_its_result_and_the_others_go_on() -> None:
    error = NotOwnedError("it is not", lock="a")

    def fails() -> CallFlow[Any]:
        yield from asks("b")
        raise error

    def fails_at_once() -> CallFlow[Any]:
        raise error
        yield

    flow = together([asks("a"), fails(), fails_at_once(), asks("c")])
    assert step(flow).calls == tuple(map(call, "abc"))
    first, second, third, fourth = step(flow, answered("123"))
    assert (second, third) == (error, error)
    assert ([*first], [*fourth]) == (answered("1"), answered("3"))


def test_any_other_error_ends_all() -> None:
    def fails() -> CallFlow[Any]:
        raise KeyError
        yield

    with pytest.raises(KeyError):
        step(together([asks("a"), fails()]))


def test_other_effects_are_carried_out_at_once_while_the_flows_after_wait() -> None:
    begun: list[str] = []

    def pauses(name: str) -> CallFlow[Any]:
        begun.append(name)
        said = yield Pause(1.0)
        answers = yield from asks(name)
        return said, [*answers]

    flow = together([pauses("a"), pauses("b")])
    assert (step(flow), begun) == (Pause(1.0), ["a"])
    assert (step(flow, "first"), begun) == (Pause(1.0), ["a", "b"])
    assert step(flow, "second").calls == (call("a"), call("b"))
    assert step(flow, answered("12")) == [("first", answered("1")), ("second", answered("2"))]


def test_a_request_to_some_masters_only_goes_alone() -> None:
    only = frozenset({1})
    flow = together([asks("a", only=only), asks("b")])
    assert step(flow) == Ask((call("a"),), 1.0, only=only)
    assert step(flow, "answers").calls == (call("b"),)


def test_the_batch_ends_with_the_last_of_its_requests_and_ends_something_only_if_each_does() -> None:
    assert step(together([asks("a", until=2.0), asks("b", until=3.0)])).until == 3.0
    assert not step(together([asks("a", ends=True), asks("b")])).ends
    assert step(together([asks("a", ends=True), asks("b", ends=True)])).ends


def test_the_batch_is_certain_once_the_share_of_each_flow_is() -> None:
    seen: list[list[Answer]] = []

    def is_certain(answers: Sequence[Answer]) -> bool:
        seen.append([*answers])
        return not any(isinstance(answer[0], Failure) for answer in answers)

    ask = step(together([asks("a", is_certain=is_certain), asks("b", is_certain=is_certain)]))
    assert not ask.is_certain(answered(["1", SILENT]))
    assert not ask.is_certain(answered([SILENT, "2"]))
    seen.clear()
    assert ask.is_certain(answered("12"))
    assert seen == [answered("1"), answered("2")]
    ask = step(together([asks("a", is_certain=lambda _: True), asks("b")]))
    assert not ask.is_certain(answered("12")), "the second one waits for all masters"


def test_a_share_shows_answers_that_come_late() -> None:
    answers = answered(["1", SILENT], "34")
    share = Share(answers, range(1, 2))
    assert [*share] == [[SILENT], [[b"4"]]]
    answers[0] = [[b"1"], [b"2"]]
    assert [*share] == answered("2", "4")
    assert len(share) == 2
    answers[1][0] = [b"5"]  # type: ignore[index]
    assert [*Share(answers, range(1))] == answered("1", "5")


def test_nothing_is_asked_where_nothing_is_to_do() -> None:
    assert step(together([])) == []
