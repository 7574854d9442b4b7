"""The commands that locks need, and those of them that a server does not have."""

import re

from redis import exceptions as redis_errors

from relock._core.info import read_refusals
from relock._doctor.asking import try_to_ask
from relock._runtime.net.failures import is_unknown_command
from relock._runtime.net.raw_connection import RawConnection
from relock._scripts import load, probe, script_names

_OF_CLIENTS = ("EVAL", "EVALSHA", "HMGET", "INFO", "SUBSCRIBE", "TIME")
_OPTIONAL = ("PUBSUB",)  # scripts work without this command
_IN_SCRIPTS = re.compile(rb"\b(?:redis\.p?call|on_own)\('([A-Z]+)'")
ADVICE = "relock sends each command by its usual name: take these out of rename-command, or use a server that has them"


def needed_commands() -> list[str]:
    """Return the commands that clients and scripts send, in the order of the alphabet."""
    in_scripts = {name.decode() for script in script_names() for name in _IN_SCRIPTS.findall(load(script).source)}
    return sorted(in_scripts.union(_OF_CLIENTS).difference(_OPTIONAL))


def missing_commands(raw: RawConnection) -> list[str]:
    """Return those of `needed_commands` that the server does not know by these names.

    Each command is sent without arguments. If a server does not know a command, it says so before it complains about
    arguments. Of the known ones, only INFO and TIME run without arguments, and they change nothing.

    Raises:
        redis.RedisError, OSError: the connection breaks.
    """
    replies = [(command, try_to_ask(raw, command)) for command in needed_commands()]
    return [
        command
        for command, reply in replies
        if isinstance(reply, redis_errors.ResponseError) and is_unknown_command(str(reply))
    ]


def refusals_in_scripts(raw: RawConnection, prefix: str) -> dict[str, str]:
    """Return the commands that the server refuses in scripts, with its words; empty where it runs no script.

    PUBLISH is left out where it is also refused outside scripts, which `relock._doctor.scratch` finds.

    Raises:
        redis.RedisError, OSError: the connection breaks.
    """
    _, _, _, channel = command = probe(prefix)
    found = read_refusals(try_to_ask(raw, *command)) or {}
    if "PUBLISH" in found and isinstance(try_to_ask(raw, "PUBLISH", channel, ""), redis_errors.ResponseError):
        del found["PUBLISH"]
    return found
