"""Key names, and the way back from a key to a lock's name."""

import fnmatch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relock._keys import escape_glob, glob_filter, lock_keys, name_and_kind_of, permit_keys, read_keys, scan_pattern

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name[0] != "}")


def test_the_keys_of_a_lock_share_one_hash_tag() -> None:
    keys = lock_keys("lock", "orders:42")
    assert keys.lock == b"lock:{orders:42}"
    assert keys.queue == b"lock:{orders:42}:queue"
    assert keys.waiters == b"lock:{orders:42}:waiters"
    assert keys.token == b"lock:{orders:42}:token"
    assert keys.master == b"lock:master"


def test_the_keys_of_a_semaphore_share_the_hash_tag_of_a_lock_of_that_name_and_no_key() -> None:
    lock, keys = lock_keys("lock", "orders:42"), permit_keys("lock", "orders:42")
    assert keys.lock == keys.permits == b"lock:{orders:42}:sem"
    assert keys.queue == b"lock:{orders:42}:sem:queue"
    assert keys.waiters == b"lock:{orders:42}:sem:waiters"
    assert keys.token == b"lock:{orders:42}:sem:token"
    assert keys.leases == b"lock:{orders:42}:sem:leases"
    assert keys.limit == b"lock:{orders:42}:sem:limit"
    assert keys.master == lock.master
    assert (lock.script_name("acquire"), keys.script_name("acquire")) == ("acquire", "permit_acquire")
    assert keys != lock
    assert keys == permit_keys("lock", "orders:42")


def test_the_keys_of_readers_are_those_of_the_lock_and_equal_only_those_of_readers() -> None:
    lock, keys = lock_keys("lock", "orders:42"), read_keys("lock", "orders:42")
    assert [keys.lock, keys.queue, keys.waiters, keys.token] == [lock.lock, lock.queue, lock.waiters, lock.token]
    assert keys.leases == lock.leases == b"lock:{orders:42}:leases"
    assert (keys == lock, lock == keys, keys != lock, lock != keys) == (False, False, True, True)
    same = read_keys("lo" + "ck", "orders:" + str(42))
    assert (keys == same, keys != same, len({keys, same, lock})) == (True, False, 2)
    assert keys != read_keys("lock", "orders:43")
    assert (keys.kind, keys.noun) == ("read", "read hold")
    scripts = [keys.script_name(name) for name in ("acquire", "heal", "inspect", "leave")]
    assert scripts == ["read_acquire", "read_heal", "inspect", "leave"]


def test_keys_are_those_of_the_same_lock_wherever_they_were_made() -> None:
    """A grant names its lock, and the keys of its waiter may have been made long before."""
    one, same = lock_keys("lock", "orders:42"), lock_keys("lo" + "ck", "orders:" + str(42))
    assert one is not same, "the two names are different objects"
    assert one == same
    assert len({one, same}) == 1
    assert lock_keys("lock", "orders:43") != one
    assert lock_keys("other", "orders:42") != one


@given(NAMES)
@example("a}")
@example("a}:queue")
@example("a}:sem")
@example("a}:sem:queue")
@example("a}:sem}:sem")
def test_a_name_and_its_kind_are_found_in_its_hold_and_in_its_queue(name: str) -> None:
    for keys, kind in ((lock_keys("lock", name), "lock"), (permit_keys("lock", name), "semaphore")):
        assert keys.kind == kind
        assert name_and_kind_of("lock", keys.lock.decode()) == (name, kind)
        assert name_and_kind_of("lock", keys.queue.decode()) == (name, kind)


OTHER_KEYS = [f"lock:{{a}}{tail}" for tail in (":token", ":waiters", ":sem:token", ":sem:leases", ":sem:limit", ":se")]


@pytest.mark.parametrize(
    "key", [*OTHER_KEYS, "lock:master", "other:{a}", "other:{a}:sem", "lock:{}", "lock:{}:sem", "lock:{}a}", ""]
)
def test_other_keys_name_nothing(key: str) -> None:
    assert name_and_kind_of("lock", key) is None


def test_a_pattern_matches_names_below_a_prefix_that_is_no_pattern() -> None:
    assert scan_pattern("l*k", "orders:*") == "l\\*k:{orders:*}*"
    assert escape_glob("a[b]?") == "a\\[b\\]\\?"
    assert fnmatch.fnmatchcase("lock:{orders:42}:queue", scan_pattern("lock", "orders:*"))


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a", ["a"], ["a}b", "ab", "A", "b"]),
        ("*", ["a", "a}b", "a\nb", "é"], []),
        ("a*", ["a", "a}b", "ab"], ["ba"]),
        ("a?", ["ab"], ["a", "abc"]),
        ("??", ["ab", "é"], ["a", "aé"]),  # bytes, as the server counts
        ("[ab]c", ["ac", "bc"], ["cc", "abc", "[ab]c"]),
        ("[^a]", ["b", "^"], ["a", "ab"]),
        ("[!a]", ["a", "!"], ["b"]),  # Redis knows no such negation
        ("[a-c]", ["a", "b", "c"], ["d", "-"]),
        ("[c-a]", ["b"], ["d"]),  # in either order
        ("[-a]", ["a", "-"], ["b"]),
        ("[a-]", ["a", "]"], ["b", "-"]),  # a range that ends with the bracket
        ("[]", [], ["a", "]", "[]"]),
        ("[^]", ["a"], ["ab"]),
        ("[]a]", [], ["a", "]", "a]"]),
        ("[a\\]]", ["a", "]"], ["\\"]),
        ("[ab", ["a", "b"], ["[ab", "c", "ab"]),
        ("\\*", ["*"], ["a", "\\*"]),
        ("a\\b", ["ab"], ["a\\b"]),
        ("a\\", ["a\\"], ["a", "ab"]),
        ("*:4?:*", ["orders:42:x", "a:4b:"], ["orders:42"]),
        ("*a*a*", ["aa", "xaxax"], ["xax"]),
        (".+", [".+"], ["ab"]),
    ],
)
def test_a_glob_is_that_of_the_server(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = glob_filter(pattern)
    assert [name for name in [*matching, *others] if matches(name)] == matching


def test_a_glob_with_many_stars_takes_no_time() -> None:
    assert not glob_filter("*a" * 30 + "b")("a" * 2000)


@pytest.mark.parametrize("pattern", ["a\\", "[ab", "[a\\", "[^", "[", "[a-]"])
def test_what_would_swallow_the_end_of_the_key_is_not_sent(pattern: str) -> None:
    assert scan_pattern("lock", pattern) == "lock:{*"


@given(NAMES, st.lists(st.sampled_from(["*", "?", "[^a]", "[ab]", "\\", "[", "]", "a", "}", "-"])).map("".join))
def test_what_is_asked_of_the_server_finds_every_name_that_matches(name: str, pattern: str) -> None:
    if glob_filter(pattern)(name):
        asked = glob_filter(scan_pattern("lock", pattern))
        assert asked(f"lock:{{{name}}}")
        assert asked(f"lock:{{{name}}}:queue")
