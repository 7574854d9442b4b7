"""The error tree: the built-in error that each one is as well, its attributes, and its pickling."""

import pickle

import pytest

from relock import (
    AcquireTimeoutError,
    ClientClosedError,
    ConfigurationError,
    DeadlockError,
    LockLostError,
    NotOwnedError,
    QuorumError,
    RelockError,
)
from relock._core.effects import Failure
from relock._holding import quorum_error

DOWN, AWAY = Failure("redis://a:1/0", "it is down"), Failure("redis://b:1/0", "it is away")


def test_too_few_answers_of_one_server_are_no_matter_of_a_quorum() -> None:
    error = quorum_error("orders:42", (DOWN,), 1, 0)
    assert str(error) == "'orders:42': redis://a:1/0: it is down"
    assert (dict(error.failures), error.needed, error.answered) == ({"redis://a:1/0": "it is down"}, 1, 0)
    assert str(quorum_error(None, [DOWN], 1, 0)) == "redis://a:1/0: it is down"
    assert str(quorum_error("a", (), 1, 0)) == "'a': the server did not answer"


def test_too_few_answers_of_several_say_how_many_there_were_and_how_many_it_takes() -> None:
    error = quorum_error("a", (DOWN, AWAY), 2, 1)
    assert str(error).startswith("'a': 1 of 3 masters answered, and 2 are needed: redis://a:1/0: it is down; redis://b")


ERRORS = [
    (NotOwnedError("no", lock="a"), RuntimeError, {"lock": "a"}),
    (LockLostError("no", lock="a", token=7, reason="r"), RuntimeError, {"lock": "a", "token": 7, "reason": "r"}),
    (
        AcquireTimeoutError("no", lock="a", timeout=1.5, holder="x:1", ahead=2),
        TimeoutError,
        {"lock": "a", "timeout": 1.5, "holder": "x:1", "ahead": 2},
    ),
    (
        QuorumError("no", failures={"redis://a": "down"}, needed=2, answered=1),
        ConnectionError,
        {"lock": None, "failures": {"redis://a": "down"}, "needed": 2, "answered": 1},
    ),
    (
        DeadlockError("no", lock="a", cycle=(("a", "x:1", "x:2"), ("b", "x:2", "x:1"))),
        RuntimeError,
        {"lock": "a", "cycle": (("a", "x:1", "x:2"), ("b", "x:2", "x:1"))},
    ),
    (ConfigurationError("no", option="ttl"), ValueError, {"lock": None, "option": "ttl"}),
    (ClientClosedError("no"), RuntimeError, {"lock": None}),
]


@pytest.mark.parametrize(("error", "base", "details"), ERRORS, ids=lambda value: type(value).__name__)
def test_errors(error: RelockError, base: type[Exception], details: dict[str, object]) -> None:
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert type(one) is type(error)
        assert isinstance(one, base)
        assert isinstance(one, RelockError)
        assert str(one) == "no"
        assert {name: getattr(one, name) for name in details} == details
