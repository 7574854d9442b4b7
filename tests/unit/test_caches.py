"""Caches: they are bounded in entries and in bytes, no number of names fills them, and no result depends on one."""

import sys
import threading
import tracemalloc

import pytest

from relock import _caches
from relock._caches import ENTRY_BYTES_MAX, Cache
from relock._keys import latch_keys, lock_keys, permit_keys
from relock._scripts import Script, load, script_names

NAMES = 6_000
NAME_BYTES = 10_000
GROWTH_BYTES_MAX = 2_000_000  # of leftovers of the names, which are 60 MB themselves
THREADS = 8


@pytest.fixture(autouse=True)
def usual_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the usual bound, even if the tests run with the smallest caches."""
    monkeypatch.setattr(_caches, "COUNT_MAX", 256)


def test_what_is_kept_is_found_until_there_is_too_much() -> None:
    cache: Cache[int, str] = Cache()
    for number in range(10 * _caches.COUNT_MAX):
        assert cache.get(number) is None
        assert cache.keep(number, str(number)) == str(number)
        assert cache.get(number) == str(number)
        assert len(cache) <= _caches.COUNT_MAX


def test_a_cache_may_have_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_caches, "COUNT_MAX", 1)
    cache: Cache[int, str] = Cache()
    for number in range(3):
        cache.keep(number, str(number))
        assert cache == {number: str(number)}


def test_what_is_too_large_is_not_kept() -> None:
    cache: Cache[str, bytes] = Cache()
    cache.keep("usual", b"1", ENTRY_BYTES_MAX)
    large = b"2" * (ENTRY_BYTES_MAX + 1)
    assert cache.keep("large", large, len(large)) is large
    assert list(cache) == ["usual"]


def test_threads_that_fill_a_cache_at_the_same_time_keep_to_its_bound() -> None:
    cache: Cache[int, int] = Cache()
    most, wrong = [0] * THREADS, []

    def fill(thread: int) -> None:
        for number in range(thread, 20_000, THREADS):
            if cache.get(number, number) != cache.keep(number, number):
                wrong.append(number)
            most[thread] = max(most[thread], len(cache))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=fill, args=(thread,)) for thread in range(THREADS)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert max(most) <= _caches.COUNT_MAX + THREADS


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("script", script_names())
def test_a_head_is_the_same_from_the_cache_and_without_it(script: str, guarded: bool) -> None:
    """Names of the same length share a cache entry; prefixes share the entries that do not name them."""
    loaded = load(script)
    for prefix in ("lock", "other", "p" * (ENTRY_BYTES_MAX + 1)):
        for name in ("a", "b", "}a}", "", "é", "long" * 100, "a"):
            make = {"permit": permit_keys, "latch": latch_keys}.get(script.partition("_")[0], lock_keys)
            keys = make(prefix, name)
            words = [getattr(keys, key.name) for key in loaded.keys if guarded or not key.optional]
            packed = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            head = loaded.usual_head(keys, guarded=guarded)
            count = 3 + len(words) + len(loaded.own_arguments) + loaded.connection_argument_count
            assert head == b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%d\r\n%b" % (
                count, loaded.sha_bytes, len(str(len(words))), len(words), packed
            )  # fmt: skip
            assert loaded.usual_head(keys, guarded=guarded) == head


def test_the_heads_of_usual_names_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of a known length make no new head, however many there are."""
    script = load("acquire")
    script.usual_head(lock_keys("lock", "orders:00000"), guarded=True)
    monkeypatch.setattr(Script, "_frame", None)
    for number in range(20_000):
        assert b"{orders:%05d}" % number in script.usual_head(lock_keys("lock", f"orders:{number:05}"), guarded=True)


def test_names_leave_nothing_behind_however_many_and_long_they_are() -> None:
    scripts = [load(name) for name in ("acquire", "enqueue", "extend", "release")]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(NAMES):
            keys = lock_keys("lock", f"{number:0{NAME_BYTES + number % 100}}")
            for script in scripts:
                script.usual_head(keys, guarded=False)
                script.usual_head(keys, guarded=True)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < GROWTH_BYTES_MAX
    assert all(len(script.frames) <= _caches.COUNT_MAX for script in scripts)
