"""Options of clients and locks, checked before anything is sent.

A value of a wrong type is a ``TypeError``, as everywhere in Python (a bool is no number here); a value that
can't work is a `ConfigurationError` that names the option, the value and what would be right.
"""

import math
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict, get_args

from attrs import evolve, field, frozen

from relock._errors import ConfigurationError
from relock._events import Event, Loss

TTL_SECONDS_MIN = 0.05
TTL_SECONDS_MAX = 10 * 365.25 * 86400.0
NODE_TIMEOUT_SECONDS_MIN = 0.1
NODE_TIMEOUT_SECONDS_MAX = 1.0
FLOAT_MAX = sys.float_info.max
POLL_SECONDS_MAX = 86400.0  # `poll` refuses more than about 24 days
MIN_REPLICAS_MAX = 2**31 - 1  # WAIT accepts more, but keeps the number in an int of 32 bits
NAMES_MAX = 64  # of one multi-lock
NOTE_BYTES_MAX = 200  # in UTF-8; `lua/inspect.lua` reads no longer one
LIMIT_MAX = 1000  # of the permits of a semaphore: a script may look at each of them
DEADLOCK_SECONDS_MIN = 0.5
DEADLOCK_AFTER_SECONDS = 2.5
GUARD_FACTOR = 1.02  # the excess allows for clocks that run at different rates

Handoff = Literal["grant", "wake"]
RestartGuardBy = Literal["server", "marker"]
OnDeadlock = Literal["raise", "report", "ignore"]
DEADLOCK_RAISES, DEADLOCK_REPORTED, DEADLOCK_OFF = get_args(OnDeadlock)
OnLost = Callable[[Loss], object]
OnEvent = Callable[[Event], object]

_TYPE_NAMES: dict[type, str] = {float: "a number of seconds", int: "an int", bool: "a bool", str: "a str"}


def wrong(option: str, value: object, right: str) -> ConfigurationError:
    """Return the error for a value that can't work."""
    return ConfigurationError(f"{option}={value!r}: it must be {right}", option=option)


def _check_type(option: str, value: object, kind: type) -> None:
    accepted = (float, int) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{option} must be {_TYPE_NAMES[kind]}, not {type(value).__name__}: {value!r}")


def _seconds(low: float, high: float, right: str, *, optional: bool = False) -> Callable[[Any, Any, Any], None]:
    """Return a validator for a number of seconds from `low` to `high`."""

    def validate(_instance: Any, attribute: Any, value: Any) -> None:
        option = attribute.name
        if value is None and optional:
            return
        check_seconds(option, value, low, high, right)

    return validate


def check_seconds(option: str, value: Any, low: float, high: float, right: str) -> None:
    """Refuse a value that is no number of seconds from `low` to `high`.

    Raises:
        TypeError: a value of another type.
        ConfigurationError: a value out of range, NaN, or an int that no float can hold.
    """
    if value.__class__ is not float:  # this test saves time: `ensure` may be called in a tight loop
        _check_type(option, value, float)
    if not low <= value <= high or FLOAT_MAX < value < math.inf:
        raise wrong(option, value, right)


def _flag(_instance: Any, attribute: Any, value: Any) -> None:
    _check_type(attribute.name, value, bool)


def _callback(_instance: Any, attribute: Any, value: Any) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{attribute.name} must be callable or None, not {type(value).__name__}: {value!r}")


_TTL = _seconds(TTL_SECONDS_MIN, TTL_SECONDS_MAX, f"between {TTL_SECONDS_MIN} seconds and 10 years")


def _timeout(_instance: Any, attribute: Any, value: Any) -> None:
    if value is None:
        return
    _check_type(attribute.name, value, float)
    if value != -1 and not 0 <= value <= FLOAT_MAX:
        raise wrong(attribute.name, value, "0 or more seconds, -1 to wait as long as it takes, or None")


def _owner(_instance: Any, attribute: Any, value: Any) -> None:
    if value is None:
        return
    _check_type(attribute.name, value, str)
    if not value:
        raise wrong(attribute.name, value, "a non-empty str, or None for the calling thread")


def _note(_instance: Any, attribute: Any, value: Any) -> None:
    if value is None:
        return
    _check_type(attribute.name, value, str)
    check_utf8(attribute.name, value)
    if not value.strip() or len(value.encode()) > NOTE_BYTES_MAX:  # Lua reads a count with blanks behind it as a number
        raise wrong(attribute.name, value, f"a str of 1 to {NOTE_BYTES_MAX} bytes in UTF-8, not only blanks, or None")


def _one_of(choices: Any) -> Callable[[Any, Any, Any], None]:
    """Return a validator for one of the `choices`, a `Literal` of str."""

    def validate(_instance: Any, attribute: Any, value: Any) -> None:
        _check_type(attribute.name, value, str)
        if value not in get_args(choices):
            raise wrong(attribute.name, value, "one of " + ", ".join(map(repr, get_args(choices))))

    return validate


_LONG = _seconds(math.ulp(0.0), math.inf, "more than 0 seconds, or None", optional=True)


@frozen(kw_only=True, eq=False, repr=False)
class LockOptions:
    """Options of one lock; times are seconds."""

    ttl: float = field(default=30.0, validator=_TTL)
    renew: bool = field(default=True, validator=_flag)
    fair: bool = field(default=True, validator=_flag)
    timeout: float | None = field(default=None, validator=_timeout)
    owner: str | None = field(default=None, validator=_owner)
    max_hold: float | None = field(default=None, validator=_LONG)
    deadlock: OnDeadlock = field(default="raise", validator=_one_of(OnDeadlock))
    on_lost: OnLost | None = field(default=None, validator=_callback)
    at_least: float = field(
        default=0.0, validator=_seconds(0.0, TTL_SECONDS_MAX, "0 or more seconds, at most 10 years")
    )
    note: str | None = field(default=None, validator=_note)


#: Return the value of a str as a plain str: an f-string shows a subclass, such as an enum, as its `__format__` says.
plain: Callable[[str], str] = str.__str__


def _plain_if_str(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value


def _prefix(_instance: Any, attribute: Any, value: Any) -> None:
    _check_type(attribute.name, value, str)
    if not value or "{" in value or "}" in value:
        raise wrong(attribute.name, value, "a non-empty str without braces")
    check_utf8(attribute.name, value)


def _client_name(_instance: Any, attribute: Any, value: Any) -> None:
    if value is None:
        return
    _check_type(attribute.name, value, str)
    if not value:
        raise wrong(attribute.name, value, "a non-empty str")
    check_utf8(attribute.name, value)


def _min_replicas(_instance: Any, attribute: Any, value: Any) -> None:
    _check_type(attribute.name, value, int)
    if not 0 <= value <= MIN_REPLICAS_MAX:
        raise wrong(attribute.name, value, f"0 or more, at most {MIN_REPLICAS_MAX}: WAIT counts no further")


def _max_connections(_instance: Any, attribute: Any, value: Any) -> None:
    _check_type(attribute.name, value, int)
    if value < 1:
        raise wrong(attribute.name, value, "1 or more")


def default_client_name() -> str:
    """Return a name of host and process, for people that read the keys; called anew after a fork."""
    return f"{socket.gethostname()}-{os.getpid()}"


class ClientArguments(TypedDict, total=False):
    """Options of a client as keyword arguments, for editors and type checkers; the same as in `ClientOptions`."""

    ttl: float
    renew: bool
    fair: bool
    node_timeout: float | None
    max_hold: float | None
    patience: float
    restart_guard: float | None
    restart_guard_by: RestartGuardBy
    min_replicas: int
    replica_timeout: float
    max_connections: int
    handoff: Handoff
    redisson: bool
    deadlock: OnDeadlock
    deadlock_after: float | None
    long_wait: float | None
    drift_factor: float
    prefix: str
    client_name: str | None
    on_lost: OnLost | None
    on_event: OnEvent | None


class PermitArguments(TypedDict, total=False):
    """Options of a semaphore as keyword arguments; an option that is None is as the client says."""

    ttl: float | None
    renew: bool | None
    fair: bool | None
    timeout: float | None
    owner: str | None
    max_hold: float | None
    on_lost: OnLost | None


class SharedArguments(PermitArguments, total=False):
    """Options that all kinds of locks have, as keyword arguments; an option that is None is as the client says."""

    deadlock: OnDeadlock | None
    note: str | None


class LockArguments(SharedArguments, total=False):
    """Options of a lock as keyword arguments of `Client.lock`; an option that is None is as the client says."""

    at_least: float | None


@frozen(kw_only=True, eq=False, repr=False)
class ClientOptions:
    """Options of a client; times are seconds. ``docs/reference/options.md`` explains each."""

    ttl: float = field(default=30.0, validator=_TTL)
    renew: bool = field(default=True, validator=_flag)
    fair: bool = field(default=True, validator=_flag)
    node_timeout: float | None = field(
        default=None,
        validator=_seconds(
            0.001, POLL_SECONDS_MAX, "more than 0 seconds, at most ttl/3 and at most a day", optional=True
        ),
    )
    max_hold: float | None = field(default=None, validator=_LONG)
    patience: float = field(default=30.0, validator=_seconds(0.0, math.inf, "0 or more seconds"))
    restart_guard: float | None = field(
        default=None,
        validator=_seconds(0.0, TTL_SECONDS_MAX, "0 (no guard) or more seconds, at most 10 years", optional=True),
    )
    restart_guard_by: RestartGuardBy = field(default="server", validator=_one_of(RestartGuardBy))
    min_replicas: int = field(default=0, validator=_min_replicas)
    replica_timeout: float = field(default=1.0, validator=_seconds(math.ulp(0.0), math.inf, "more than 0 seconds"))
    max_connections: int = field(default=64, validator=_max_connections)
    handoff: Handoff = field(default="grant", validator=_one_of(Handoff))
    redisson: bool = field(default=False, validator=_flag)
    deadlock: OnDeadlock = field(default="raise", validator=_one_of(OnDeadlock))
    deadlock_after: float | None = field(
        default=DEADLOCK_AFTER_SECONDS,
        validator=_seconds(DEADLOCK_SECONDS_MIN, math.inf, "0.5 or more seconds, or None", optional=True),
    )
    long_wait: float | None = field(default=None, validator=_LONG)
    drift_factor: float = field(default=0.01, validator=_seconds(0.0, 0.5, "between 0.0 and 0.5"))
    prefix: str = field(default="lock", validator=_prefix, converter=_plain_if_str)
    client_name: str | None = field(default=None, validator=_client_name)
    on_lost: OnLost | None = field(default=None, validator=_callback)
    on_event: OnEvent | None = field(default=None, validator=_callback)

    def __attrs_post_init__(self) -> None:
        if self.node_timeout is not None and self.node_timeout > self.ttl / 3:
            raise wrong("node_timeout", self.node_timeout, f"at most a third of the ttl of {self.ttl} s")

    @property
    def guard_ms(self) -> int:
        """Time (ms) for which a master that may have forgotten leases has no vote.

        `Client` replaces the option's default None before this is read, because it depends on the number of masters.
        """
        return math.ceil(self.guard_for(1) * GUARD_FACTOR * 1000)

    def guard_for(self, masters: int) -> float:
        """Return the restart guard (s) of a client of so many masters: none for one by default, the ttl for several."""
        if self.restart_guard is not None:
            return self.restart_guard
        return self.ttl if masters > 1 else 0.0

    def check_guard(self, seconds: float, masters: int, option: str = "ttl") -> None:
        """Refuse a lease, or a rest, of so many `seconds` that would outlast the guard of so many masters.

        Such a lease might run on while a master that has forgotten it votes again: two holders. A lone master may have
        a short guard, because its default, no guard, allows the same.

        Raises:
            ConfigurationError: there is a guard, and it is shorter than the `option`.
        """
        guard = self.guard_for(masters)
        if masters > 1 and 0 < guard < seconds:
            raise wrong(
                option,
                seconds,
                f"at most the restart_guard of {guard:g} s, because a master that restarts has a vote again after it; "
                "raise restart_guard in every client",
            )

    def check_lock(self, options: LockOptions, masters: int) -> None:
        """Refuse options of a lock whose lease or rest would outlast the guard of so many masters, as `check_guard`."""
        self.check_guard(options.ttl, masters)
        self.check_guard(options.at_least, masters, "at_least")

    def node_timeout_for(self, ttl: float) -> float:
        """Return the longest wait (s) for one master in one attempt at a lock with this ttl."""
        if self.node_timeout is None:
            wanted = min(max(ttl / 10, NODE_TIMEOUT_SECONDS_MIN), NODE_TIMEOUT_SECONDS_MAX)
        else:
            wanted = self.node_timeout
        return min(wanted, ttl / 3)

    def for_lock(self, **given: Any) -> LockOptions:
        """Return the options of a lock: those that are given, and the client's for the rest."""
        base = LockOptions(
            ttl=self.ttl, renew=self.renew, fair=self.fair, max_hold=self.max_hold, deadlock=self.deadlock
        )
        return evolve(base, **given) if given else base


def check_flag(option: str, value: object) -> None:
    """Raise `TypeError` for a value that is no bool."""
    _check_type(option, value, bool)


def set_options(given: LockArguments) -> dict[str, Any]:
    """Return the arguments that are not None, and so not left to the client."""
    return {option: value for option, value in given.items() if value is not None}


def check_lock_options(given: LockArguments) -> None:
    """Refuse options that can't work with any client.

    Raises:
        TypeError: a value of a wrong type.
        ConfigurationError: a wrong value.
    """
    LockOptions(**set_options(given))


def check_utf8(option: str, value: str) -> None:
    """Refuse a str with lone surrogates, which has no UTF-8 form."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(option, value, "text that has a UTF-8 form") from None


def check_names(names: object) -> list[str]:
    """Return the names for a multi-lock, each once, in the order of their bytes; or raise an error.

    Raises:
        TypeError: `names` is a str, or not iterable; or one of them is not a str.
        ConfigurationError: there is none, or more than `NAMES_MAX`; or one can't be the name of a lock.
    """
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(f"lock_all takes several names, such as a list of str, not {type(names).__name__}: {names!r}")
    different: dict[str, None] = {}
    for name in names:
        different[check_name(name)] = None
        if len(different) > NAMES_MAX:  # now: there may be names without end
            break
    if not 1 <= len(different) <= NAMES_MAX:
        raise wrong("names", len(different), f"from 1 to {NAMES_MAX} names")
    return sorted(different, key=str.encode)


def check_limit(limit: int, option: str = "limit", least: int = 1) -> int:
    """Return the limit of a semaphore; or raise an error.

    Raises:
        TypeError: `limit` is not an int.
        ConfigurationError: it is below `least`, or above `LIMIT_MAX`.
    """
    _check_type(option, limit, int)
    if not least <= limit <= LIMIT_MAX:
        raise wrong(option, limit, f"from {least} to {LIMIT_MAX}")
    return limit


def check_permits(permits: int, limit: int, masters: int) -> int:
    """Return how many permits a caller asks for at once; or raise an error.

    Raises:
        TypeError: `permits` is not an int.
        ConfigurationError: they are fewer than 1, or more than the `limit`, or several of a quorum.
    """
    _check_type("permits", permits, int)
    if not 1 <= permits <= limit:
        raise wrong("permits", permits, f"from 1 to the limit of {limit}: more would never be free")
    if permits != 1 and masters > 1:
        raise wrong("permits", permits, "1 with several masters, which can't agree on several slots at once")
    return permits


def check_name(name: object) -> str:
    """Return the name of a lock as a plain str, or raise an error that says what would be right.

    Raises:
        TypeError: `name` is not a str.
        ConfigurationError: it is empty, has no UTF-8 form, or begins with ``}``.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a lock must be a str, not {type(name).__name__}: {name!r}")
    if not name or name.startswith("}"):
        raise wrong("name", name, "a non-empty str that does not begin with '}' (it would have no Cluster hash tag)")
    check_utf8("name", name)
    return plain(name)
