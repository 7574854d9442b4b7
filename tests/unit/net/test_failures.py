"""Words of a server's error, and their meaning for an attempt."""

import errno
import os
import ssl

import pytest
import redis

from relock._runtime.net.failures import failure_of, is_break


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


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value script: abc, on @user_script:142.",
        "ERR Error running script (call to f_8): @user_script: 142: -WRONGTYPE Operation against a key holding the",
    ],
)
def test_a_key_that_another_program_has_written_is_a_mistake_with_a_reason(text: str) -> None:
    failure = failure_of("m", redis.ResponseError(text), sent=True)
    assert (failure.sent, failure.permanent) == (True, True)
    assert "another program has written to a key" in failure.why


@pytest.mark.parametrize(
    "text",
    [
        "unknown command 'EVALSHA', with args beginning with: 'abc' '5' ",
        "unknown command `TIME`, with args beginning with: ",
        "Unknown Redis command called from script script: abc, on @user_script:5.",
        "Error running script (call to f_8): @user_script: 5: Unknown Redis command called from Lua script",
        "Unknown command called from script script: abc, on @user_script:5.",
        "ERR Command is not available: 'EVALSHA'. See https://upstash.com/docs/redis for details",
        "ERR command 'evalsha' not support for your account",
        "This Redis command is not allowed from script script: abc, on @user_script:5.",
        "Error running script (call to f_8): @user_script: 5: This Redis command is not allowed from scripts",
    ],
)
def test_a_command_that_the_server_does_not_know_is_a_mistake_with_a_reason(text: str) -> None:
    failure = failure_of("m", redis.ResponseError(text), sent=True)
    assert failure.permanent
    assert "relock doctor says which" in failure.why


@pytest.mark.parametrize(
    "error",
    [
        redis.ResponseError("CROSSSLOT Keys in request don't hash to the same slot"),
        redis.exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"),
        redis.ResponseError("ERR Script attempted to access a non local key in a cluster node script: abc, on @user:5"),
        redis.ResponseError("Lua script attempted to access a non local key in a cluster node"),
        redis.ResponseError("Attempted to access a non local key in a cluster node"),
        redis.ResponseError("Script attempted to access keys that do not hash to the same slot"),
    ],
    ids=str,
)
def test_a_key_in_a_slot_of_another_node_is_one_to_try_again_and_the_script_may_have_written(error: Exception) -> None:
    failure = failure_of("m", error, sent=True)
    assert failure.why.startswith("TRYAGAIN: ")
    assert (failure.sent, failure.permanent) == (True, False)


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
        (redis.ConnectionError("Error -2 connecting to no-host:6379. Name or service not known."), "DNS"),
        (redis.ConnectionError("Error -3 connecting to no-host:6379. Temporary failure in name resolution."), "DNS"),
        (redis.InvalidResponse('Protocol error, got "H" as reply type byte'), "no Redis"),
        (TimeoutError("The write operation timed out"), "did not answer in time"),  # of a send over TLS
    ],
    ids=str,
)
def test_what_a_socket_says_of_a_server_comes_with_what_to_do(error: Exception, advice: str) -> None:
    failure = failure_of("m", error, sent=False)
    assert advice in failure.why
    assert not failure.permanent


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "redis:// instead of rediss://"),
        ("[SSL: RECORD_LAYER_FAILURE] record layer failure (_ssl.c:1029)", "redis:// instead of rediss://"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", "ssl_ca_certs"),
    ],
)
def test_what_tls_says_comes_with_what_to_do_and_is_a_mistake(words: str, advice: str) -> None:
    failure = failure_of("m", ssl.SSLError(1, words), sent=False)
    assert advice in failure.why
    assert failure.permanent


EOF = "EOF occurred in violation of protocol (_ssl.c:992)"


@pytest.mark.parametrize(
    ("error", "is_permanent"),
    [
        (ssl.SSLEOFError(8, EOF), False),
        (ssl.SSLError(1, f"[SSL: UNEXPECTED_EOF_WHILE_READING] {EOF}"), False),
        (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF) (_ssl.c:992)"), False),
        (ssl.SSLSyscallError(5, "Some I/O error occurred (_ssl.c:992)"), False),
        (ssl.SSLError(1, "[SSL: PROTOCOL_IS_SHUTDOWN] protocol is shutdown (_ssl.c:2580)"), False),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert internal error (_ssl.c:992)"), False),
        (ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] decryption failed (_ssl.c:992)"), False),
        (ssl.SSLError("The read operation timed out"), False),
        (TimeoutError("_ssl.c:989: The handshake operation timed out"), False),
        (ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)), False),
        (BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)), False),
        (ssl.SSLCertVerificationError(1, "a certificate that this version of Python words in another way"), True),
        (ssl.SSLError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch"), True),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)"), True),
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"), True),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired"), True),
        (ssl.SSLError(1, "[SSL: TLSV1_UNRECOGNIZED_NAME] tlsv1 unrecognized name (_ssl.c:992)"), True),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version (_ssl.c:992)"), True),
        (ssl.SSLError(1, "[SSL: UNSUPPORTED_PROTOCOL] unsupported protocol (_ssl.c:992)"), True),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure (_ssl.c:992)"), True),
        (ssl.SSLError("No cipher can be selected."), True),
        (ssl.SSLError(524297, "[SSL] PEM lib (_ssl.c:4048)"), True),
        (ssl.SSLError(1, "[X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate or crl found (_ssl.c:4149)"), True),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_wrapped", [False, True], ids=["as it is", "by redis-py"])
def test_of_what_tls_says_only_a_mistake_of_configuration_is_permanent(
    error: OSError, is_permanent: bool, is_wrapped: bool
) -> None:
    shown: Exception = error
    if is_wrapped:
        shown = redis.ConnectionError(f"Error {error.errno} connecting to h:1. {error.strerror}.")
        shown.__context__ = error
    assert failure_of("rediss://h:1/0", shown, sent=False).permanent is is_permanent


def test_an_end_of_file_in_the_handshake_is_explained() -> None:
    for error in (ssl.SSLEOFError(8, EOF), ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)")):
        assert "a proxy whose server is away" in failure_of("rediss://h:1/0", error, sent=False).why


HANDSHAKE = TimeoutError("_ssl.c:989: The handshake operation timed out")


@pytest.mark.parametrize(
    ("scheme", "error", "advice"),
    [
        ("rediss", redis.TimeoutError("Timeout connecting to server"), "write redis:// instead of rediss://"),
        ("redis", redis.ConnectionError("Connection closed by server."), "write rediss://, not redis://"),
        ("redis", redis.ConnectionError("Error while reading: (104, 'Connection reset by peer')"), "write rediss://"),
        ("redis", redis.ConnectionError('Protocol error, got "\\x15" as reply type byte'), "speaks TLS: use rediss://"),
    ],
)
def test_a_scheme_that_may_be_the_wrong_one_is_named_with_the_other(scheme: str, error: Exception, advice: str) -> None:
    if scheme == "rediss":
        error.__context__ = HANDSHAKE
    failure = failure_of(f"{scheme}://h:1/0", error, sent=False)
    assert advice in failure.why
    assert not failure.permanent


def test_no_scheme_is_doubted_where_it_has_worked_or_says_nothing_of_tls() -> None:
    reset = redis.ConnectionError("Connection reset by peer")
    for address, sent in [("redis://h:1/0", True), ("rediss://h:1/0", False), ("unix:///a/0", False)]:
        assert "rediss://," not in failure_of(address, reset, sent=sent).why
    timeout = redis.TimeoutError("Timeout connecting to server")
    assert "redis://" not in failure_of("rediss://h:1/0", timeout, sent=False).why


def test_a_missing_password_is_asked_for_where_the_command_line_takes_it() -> None:
    """The command line refuses passwords in its URLs."""
    for text in ("Authentication required.", "NOAUTH Authentication required."):
        assert "RELOCK_PASSWORD" in failure_of("m", redis.AuthenticationError(text), sent=False).why


@pytest.mark.parametrize(
    ("error", "broke"),
    [
        (redis.ConnectionError("the server closed the connection"), True),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), True),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), True),
        (redis.TimeoutError("Timeout waiting for a reply"), False),
        (TimeoutError("timed out"), False),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), False),
        (redis.AuthenticationError("WRONGPASS"), False),
        (redis.BusyLoadingError("LOADING"), False),
        (redis.ResponseError("NOPERM"), False),
        (redis.InvalidResponse("a reply that no script gives"), False),
    ],
    ids=str,
)
def test_only_the_end_of_a_connection_is_one(error: Exception, broke: bool) -> None:
    assert is_break(error) is broke
