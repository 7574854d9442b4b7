"""Slots of a Redis Cluster, and the nodes that serve them (redis.io, "Redis cluster specification")."""

import re
from typing import Any, NamedTuple

from redis import exceptions as redis_errors
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from relock._errors import ConfigurationError
from relock._keys import LockKeys
from relock._runtime.net.failures import is_unknown_command
from relock._runtime.net.node import Node, Seeds

SLOTS = REDIS_CLUSTER_HASH_SLOTS

_REDIRECT = re.compile(r"\b(MOVED|ASK) ([0-9]+) (\S*):([0-9]+)")
# A node has these words for the host at which the client has reached the node.
_UNKNOWN_HOSTS = (None, b"", b"?")


class Range(NamedTuple):
    """Slots from `first` to `last`, and the master that serves them; an empty `host`: the host of the asked node."""

    first: int
    last: int
    host: str
    port: int


class Redirection(NamedTuple):
    """Redirection to another node: of one request if `asking`, else of all, because the slot has moved there."""

    slot: int
    host: str
    port: int
    asking: bool


def slot_of(keys: LockKeys) -> int:
    """Return the slot of a lock, whose keys all have the same hash tag."""
    return key_slot(keys.lock)


def ranges_of(node: Node, timeout: float) -> list[Range]:
    """Ask `node` for the cluster's ranges of slots, on a new connection; `timeout` is in seconds, for each step.

    Raises:
        redis.RedisError, OSError: `node` can't be reached, or refuses.
        ConfigurationError: `node` is no node of a cluster.
    """
    raw = node.raw_connection(timeout)
    try:
        raw.connect()
        raw.send_command("CLUSTER", "SLOTS", check_health=False)
        return [_range(*entry[:3]) for entry in raw.read_response()]
    except redis_errors.ResponseError as error:
        if "cluster support disabled" in str(error):
            raise ConfigurationError(
                f"{node.address} is no node of a Cluster: name it without +cluster", option="nodes"
            ) from None
        raise
    finally:
        raw.disconnect()


def knows_shard_channels(node: Node, channel: str, timeout: float) -> bool:
    """Return whether `node` knows sharded channels, and lets this user subscribe to `channel`, in whatever slot.

    `timeout` is in seconds, for each step.

    Raises:
        redis.RedisError, OSError: `node` can't be reached.
    """
    raw = node.raw_connection(timeout)
    try:
        raw.connect()
        raw.send_command("SSUBSCRIBE", channel, check_health=False)
        raw.read_response()
    except redis_errors.ResponseError as error:
        return allows_shard_channels(error)
    finally:
        raw.disconnect()
    return True


def allows_shard_channels(reply: object) -> bool:
    """Return whether a reply to SSUBSCRIBE is that of a node which knows sharded channels, and allows this one.

    Any other error sends the client to the node that has the channel's slot.
    """
    return not (isinstance(reply, redis_errors.NoPermissionError) or is_unknown_command(str(reply)))


def members(seeds: Seeds, timeout: float) -> list[tuple[Node, list[Range]]]:
    """Return the nodes that serve slots, and their slots, as the first seed that answers names them.

    `timeout` is in seconds, for each step.

    Raises:
        redis.RedisError, OSError: no seed can be reached.
        ConfigurationError: a seed is no node of a cluster.
    """
    failure: BaseException = redis_errors.ConnectionError("no node is named")
    for seed in seeds.nodes:
        try:
            ranges = ranges_of(seed, timeout)
        except (redis_errors.RedisError, OSError) as error:
            failure = error
            continue
        found: dict[str, tuple[Node, list[Range]]] = {}
        for one in ranges:
            node = seeds.node_at(one.host or seed.kwargs["host"], one.port)
            found.setdefault(node.address, (node, []))[1].append(one)
        return list(found.values())
    raise failure


def _range(first: int, last: int, master: list[Any]) -> Range:
    host, port, *_ = master
    return Range(first, last, "" if host in _UNKNOWN_HOSTS else host.decode(), port)


def redirection(words: str) -> Redirection | None:
    """Return the node to which an error redirects the request, or None for any other error."""
    found = _REDIRECT.match(words)
    return found and Redirection(int(found[2]), found[3], int(found[4]), found[1] == "ASK")
