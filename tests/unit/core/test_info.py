"""INFO of a server, and relock's conclusions from it."""

import pytest

from relock._core.info import read_info, shared_servers

REDIS = b"""# Server\r
redis_version:7.0.15\r
redis_mode:standalone\r
run_id:ab\r
# Replication\r
role:master\r
connected_slaves:2\r
master_replid:cd\r
# Memory\r
maxmemory_policy:noeviction\r
"""


def test_what_a_server_says() -> None:
    info = read_info(REDIS)
    assert (info.incarnation, info.product, info.version, info.replicas) == ("ab:cd", "Redis", "7.0.15", 2)
    assert not info.is_replica
    assert not info.evicts


def test_a_valkey_names_the_redis_that_it_is_like_as_well() -> None:
    info = read_info(REDIS + b"valkey_version:9.1.2\r\n")
    assert (info.product, info.version) == ("Valkey", "9.1.2")


def test_what_is_not_said_is_held_against_nobody() -> None:
    info = read_info(b"")
    assert not info.is_replica
    assert not info.evicts
    assert info.incarnation == ":"


@pytest.mark.parametrize(
    ("line", "is_replica", "evicts"), [(b"role:slave", True, False), (b"maxmemory_policy:allkeys-lru", False, True)]
)
def test_a_replica_and_a_policy_that_evicts_are_seen(line: bytes, is_replica: bool, evicts: bool) -> None:
    info = read_info(line)
    assert (info.is_replica, info.evicts) == (is_replica, evicts)


def test_addresses_of_one_server_are_found_also_where_one_is_named_twice() -> None:
    assert shared_servers([("a", "1"), ("b", "2"), ("c", "1"), ("d", ""), ("e", "")]) == [["a", "c"]]
    assert shared_servers([("a", "1"), ("a", "1")]) == [["a", "a"]]
