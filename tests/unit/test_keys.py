"""Key names, and the way back from a key to a lock's name."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relock._keys import escape_glob, lock_keys, name_of, scan_pattern

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name[0] != "}")


def test_the_keys_of_a_lock_share_one_hash_tag() -> None:
    keys = lock_keys("lock", "orders:42")
    assert keys.lock == b"lock:{orders:42}"
    assert keys.queue == b"lock:{orders:42}:queue"
    assert keys.waiters == b"lock:{orders:42}:waiters"
    assert keys.token == b"lock:{orders:42}:token"
    assert keys.master == b"lock:master"


@given(NAMES)
def test_a_name_is_found_in_its_hold_and_in_its_queue(name: str) -> None:
    keys = lock_keys("lock", name)
    assert name_of("lock", keys.lock.decode()) == name
    assert name_of("lock", keys.queue.decode()) == name


@pytest.mark.parametrize("key", ["lock:{a}:token", "lock:{a}:waiters", "lock:master", "other:{a}", "lock:{}"])
def test_other_keys_name_no_lock(key: str) -> None:
    assert name_of("lock", key) is None


def test_a_pattern_matches_names_below_a_prefix_that_is_no_pattern() -> None:
    assert scan_pattern("l*k", "orders:*") == "l\\*k:{orders:*}*"
    assert escape_glob("a[b]?") == "a\\[b\\]\\?"
    assert fnmatch.fnmatchcase("lock:{orders:42}:queue", scan_pattern("lock", "orders:*"))
