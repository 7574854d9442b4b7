"""The error tree: what each is besides, what it carries, and that it survives pickling."""

import pickle

import pytest

from relock import (
    AcquireTimeoutError,
    ClientClosedError,
    ConfigurationError,
    LockLostError,
    NotOwnedError,
    QuorumError,
    RelockError,
)

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
