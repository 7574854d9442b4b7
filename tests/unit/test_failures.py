"""What a server's words mean for an attempt."""

import errno
import os

import pytest
import redis

from relock._runtime.failures import failure_of


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("NOREPLICAS Not enough good replicas to write. script: abc, on @user_script:142.", "min-replicas-to-write"),
        ("ERR Error running script (call to f_8): @user_script: 142: -NOREPLICAS Not enough good replicas", "replica"),
        ("MISCONF Valkey is configured to save RDB snapshots, but ...", "disk"),
    ],
)
def test_a_server_that_may_write_nothing_has_written_nothing_and_may_get_over_it(text: str, advice: str) -> None:
    failure = failure_of("m", redis.ResponseError(text), sent=True)
    assert (failure.sent, failure.permanent) == (False, False)
    assert advice in failure.why


def test_a_service_that_sentinels_do_not_know_is_a_mistake() -> None:
    error = redis.ConnectionError("no Sentinel names a master: s:1: ERR No such master with that name")
    failure = failure_of("m", error, sent=False)
    assert failure.permanent
    assert "check the name" in failure.why


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (redis.ConnectionError("max number of clients reached"), "raise maxclients"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "did not answer in time"),  # of a send
        (TimeoutError("The write operation timed out"), "did not answer in time"),  # of a send over TLS
    ],
    ids=str,
)
def test_what_a_socket_says_of_a_server_comes_with_what_to_do(error: Exception, advice: str) -> None:
    failure = failure_of("m", error, sent=False)
    assert advice in failure.why
    assert not failure.permanent


def test_a_missing_password_is_asked_for_where_the_command_line_takes_it() -> None:
    """The command line refuses one in its URLs."""
    for text in ("Authentication required.", "NOAUTH Authentication required."):
        assert "RELOCK_PASSWORD" in failure_of("m", redis.AuthenticationError(text), sent=False).why
