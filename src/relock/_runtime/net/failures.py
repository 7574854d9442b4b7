"""Failures of masters that gave no reply that counts: redis-py's exceptions become the values that flows see."""

import errno
import os
import socket
import ssl

from redis import exceptions as redis_errors

from relock._core.effects import Failure
from relock._runtime.net.sentinel import NoMasterError

# Waiting does not help against these failures: redis-py's types, and parts of messages.
_PERMANENT_TYPES = (
    redis_errors.AuthenticationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
    redis_errors.AuthorizationError,
)
_NO_RIGHT_IN_SCRIPT = ("executing the script can't", "ACL failure in script")  # the words differ by version
# A server's messages for a command that it lacks, or has renamed: to a client, and in a script, of Redis and Valkey;
# then those of two services, Upstash and Alibaba Cloud.
_UNKNOWN_COMMAND = (
    *("unknown command", "Unknown command called from", "Unknown Redis command called from"),
    *("Command is not available", "not support for your account"),
)
_NOT_IN_SCRIPT = "command is not allowed from script"  # the command works outside scripts
_PERMANENT_TEXTS = (
    "DB index is out of range",
    "WRONGPASS",
    "NOAUTH",
    "NOPERM",
    "invalid password",
    "No such master with that name",
    "WRONGTYPE",
    *_NO_RIGHT_IN_SCRIPT,
    *_UNKNOWN_COMMAND,
    _NOT_IN_SCRIPT,
)

# These errors come before a script's first write. After any other error, a part of the script may have run.
_NOTHING_WRITTEN = (
    "NOAUTH",
    "NOSCRIPT",
    "LOADING",
    "BUSY",
    "OOM",
    "NOREPLICAS",
    "MISCONF",
    "READONLY",
    "MASTERDOWN",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
)

# A node's messages, in a script or to a client, about a key that is not its business while slots move; Redis puts no
# such word as TRYAGAIN before them in a script.
_NOT_ITS_SLOT = ("CROSSSLOT", "do not hash to the same slot", "don't hash to the same slot", "access a non local key")

# redis-py drops the first word of these messages; the type of its exception (the first that fits) shows the word.
_FIRST_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.MovedError, "MOVED"),
    (redis_errors.AskError, "ASK"),
    (redis_errors.TryAgainError, "TRYAGAIN"),
    (redis_errors.MasterDownError, "MASTERDOWN"),
    (redis_errors.ClusterDownError, "CLUSTERDOWN"),
    (redis_errors.NoPermissionError, "NOPERM"),
    (redis_errors.OutOfMemoryError, "OOM"),
    (redis_errors.ReadOnlyError, "READONLY"),
)

# Messages of resolvers (glibc, musl, macOS) for a name without an address.
_NO_ADDRESS = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "Name does not resolve",
    "nodename nor servname",
)
_NO_BREAKS = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.BusyLoadingError,
    TimeoutError,  # redis-py's own `TimeoutError` is no `ConnectionError`
    BlockingIOError,  # a send that took too long raises this
)
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
_NO_MORE_CONNECTIONS = "max number of clients"
_ACL_PAGE = "give this user the rights that the documentation's ACL page lists"
_RENAMED = "its rename-command or its service has taken the command away: relock doctor says which it lacks"
_OF_SERVICE = "a limit of this service: relock doctor says which commands it refuses"
_PASSWORD = "it needs a password: in the URL, or for the command line in RELOCK_PASSWORD"
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")  # the words differ by the version of OpenSSL
# Words of OpenSSL for a mistake in the configuration. Any other error (an end of file, an alert without a reason) may
# come from a proxy whose server is away.
_TLS_MISTAKES = (
    *_NO_TLS,
    *("CERTIFICATE", "UNKNOWN_CA", "UNRECOGNIZED_NAME", "ACCESS_DENIED"),
    *("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "PROTOCOL_VERSION", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"),
    *("HANDSHAKE_FAILURE", "CIPHER", "cipher", "INSUFFICIENT_SECURITY", "TOO_SMALL", "TOO_WEAK"),
    *("[X509", "[PEM", "PEM lib", "KEY_VALUES_MISMATCH"),  # these are about this client's own files
)
_TLS_ENDED = ("TLS/SSL connection has been closed", "EOF occurred in violation of protocol")
_TLS_ALERT = 'got "\\x15"'  # hiredis's message for the first byte of an alert; redis-py's parser waits for a line
_CLOSED = ("Connection reset by peer", "Connection closed by server", "Broken pipe")
_ADVICE = (
    *((sign, _ACL_PAGE) for sign in ("NOPERM", *_NO_RIGHT_IN_SCRIPT)),
    *((sign, _RENAMED) for sign in _UNKNOWN_COMMAND),
    (_NOT_IN_SCRIPT, _OF_SERVICE),
    ("OOM", "it is out of memory: raise maxmemory or free some"),
    ("NOREPLICAS", "too few replicas follow it: see its min-replicas-to-write"),
    ("MISCONF", "it can't write to its disk, and so refuses writes: see its log"),
    ("READONLY", "it is a read-only replica: name the master"),
    ("WRONGPASS", "check the user and the password"),
    ("NOAUTH", _PASSWORD),
    ("Authentication required", _PASSWORD),
    ("invalid username-password", "check the user and the password"),
    ("No such master with that name", "check the name of the master in the Sentinels' configuration"),
    ("WRONGTYPE", "another program has written to a key that is relock's: see the documentation's page on keys"),
    ("LOADING", "it is loading its data; wait until it is done"),
    ("BUSY", "a script keeps it busy: wait, or end the script by SCRIPT KILL"),
    ("MASTERDOWN", "it is a replica that has lost its master: name the master"),
    ("No such file or directory", "correct the path of the unix socket, or of the certificate that TLS needs"),
    ("Connection refused", "nothing listens there: start it, or correct the address"),
    *((sign, "its host has no address: correct the name, or check DNS") for sign in _NO_ADDRESS),
    ("certificate verify failed", "name the CA that signed its certificate (ssl_ca_certs), and the certificate's host"),
    *((sign, "the server there speaks no TLS: use redis:// instead of rediss://, or its TLS port") for sign in _NO_TLS),
    *(
        (sign, "it closed the connection in the TLS handshake, like a proxy whose server is away")
        for sign in _TLS_ENDED
    ),
    ("Protocol error", "the server there is no Redis: correct the address"),
    (_NO_MORE_CONNECTIONS, "it takes no more connections: raise maxclients, or close some"),
    *((sign, "it did not answer in time") for sign in ("Timeout", "timed out", os.strerror(errno.EAGAIN))),
)


def failure_of(master: str, error: BaseException, *, sent: bool) -> Failure:
    """Return the `Failure` of `master` for an error of redis-py; `sent`: the script may have run, or may still run."""
    text = words_of(error)
    if isinstance(error, redis_errors.BusyLoadingError):
        text, sent = f"LOADING: {text}", False
    if isinstance(error, redis_errors.ResponseError):
        if any(sign in text for sign in _NOTHING_WRITTEN):
            sent = False
        if any(sign in text for sign in _NOT_ITS_SLOT):
            # The script may have written: while a slot moves, a node refuses a key that the script has just deleted.
            text = f"TRYAGAIN: {text}"
    scheme = _advice_on_scheme(master, error, text, sent)
    why = f"{text} ({scheme})" if scheme else with_advice(text)
    return Failure(master, why, permanent=_is_permanent(error, text), sent=sent)


def _advice_on_scheme(master: str, error: BaseException, text: str, sent: bool) -> str:
    """Return advice for a client that speaks TLS to a plain port, or the other way round; else an empty string.

    To a plain server, a TLS greeting looks like the beginning of a command, and the server waits for the rest. A server
    that speaks TLS closes a plain connection.
    """
    if any("handshake operation timed out" in str(cause) for cause in _causes(error)):
        return "it did not answer in time; if that port speaks no TLS, write redis:// instead of rediss://"
    if _TLS_ALERT in text:
        return "the server there speaks TLS: use rediss:// instead of redis://, or its plain port"
    if not sent and master.startswith("redis://") and any(sign in text for sign in _CLOSED):
        return "it closed a connection that had just been made; if that port speaks TLS, write rediss://, not redis://"
    return ""


def is_break(error: BaseException) -> bool:
    """Return whether `error` means that a connection ended, not that the server refused a request or was silent."""
    return isinstance(error, redis_errors.ConnectionError | OSError) and not isinstance(error, _NO_BREAKS)


def is_refusal(error: BaseException) -> bool:
    """Return whether a new connection failed for a reason that does not concern older connections to that server.

    Either the server is up and has refused this connection, or the request for one never left this machine.
    """
    refused = isinstance(error, redis_errors.ResponseError | redis_errors.AuthenticationError)
    return refused or _NO_MORE_CONNECTIONS in str(error) or any(map(_is_ours, _causes(error)))


def _is_tls_mistake(cause: BaseException | None) -> bool:
    """Return whether TLS failed for a reason that stays: the certificate, the host's name, the protocol's version."""
    return isinstance(cause, ssl.SSLCertVerificationError) or (
        isinstance(cause, ssl.SSLError) and any(sign in str(cause) for sign in _TLS_MISTAKES)
    )


def _is_ours(cause: BaseException | None) -> bool:
    """Return whether the cause is in this machine: no free descriptor or port, or no address for the name."""
    return isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno in _SHORTAGES)


def _causes(error: BaseException) -> tuple[BaseException | None, ...]:
    return error, error.__cause__, error.__context__


def words_of(error: BaseException) -> str:
    """Return the message of a server or a socket, with the first word that names a server's error."""
    text = str(error) or type(error).__name__
    word = next((word for kind, word in _FIRST_WORDS if isinstance(error, kind)), "")
    return text if word in text else f"{word} {text}"


def is_unknown_command(text: str) -> bool:
    """Return whether `text` is a server's message about a command that it lacks, or has by another name."""
    return any(sign in text for sign in _UNKNOWN_COMMAND)


def with_advice(text: str) -> str:
    """Return `text`, the message of a server or a socket, with advice on what to do about it."""
    for sign, advice in _ADVICE:
        if sign in text:
            return f"{text} ({advice})"
    return text


def _is_permanent(error: BaseException, text: str) -> bool:
    # The text has the messages of all Sentinels, but a single Sentinel that works is enough to find a master.
    if isinstance(error, NoMasterError):
        return all(cause is not None and _is_permanent(cause, words_of(cause)) for cause in error.errors)
    causes = _causes(error)
    if any(map(_is_tls_mistake, causes)):
        return True
    if any(isinstance(cause, FileNotFoundError) for cause in causes) and "unix" not in text:
        return True  # a certificate's file is missing, while a unix socket may yet appear
    return isinstance(error, _PERMANENT_TYPES) or any(sign in text for sign in _PERMANENT_TEXTS)
