"""Requests of a lock by its options: which locks hand over, and which take a hand-off."""

from pathlib import Path
from typing import Any

import pytest

from relock import _scripts
from relock._core.lock_spec import LockSpec
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._scripts import Prepared, load, load_all, script_names


def spec(**options: Any) -> LockSpec:
    of_lock = {option: options.pop(option) for option in ("fair", "ttl", "note") if option in options}
    client = ClientOptions(**options)
    return LockSpec.of(lock_keys("lock", "a"), ("a",), client.for_lock(**of_lock), client)


@pytest.mark.parametrize(
    ("options", "hand", "suffix"),
    [
        ({}, b"1", b"@3000"),
        ({"ttl": 1.0}, b"1", b"@1000"),
        ({"ttl": 0.0505}, b"1", b"@51"),
        ({"handoff": "wake"}, b"0", b""),
        ({"fair": False}, b"0", b""),
        ({"min_replicas": 1}, b"1", b""),
    ],
    ids=str,
)
def test_which_locks_hand_over_and_which_take_a_hand_off(options: dict[str, Any], hand: bytes, suffix: bytes) -> None:
    """A grant that replicas must have is worth nothing before they have it, so such a waiter asks by itself."""
    templates = spec(**options).templates
    assert (templates.hand, templates.grant_mark) == (hand, suffix)
    assert b"\r\n%b\r\n" % hand in templates.release.others


def test_no_call_reads_a_script_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An operator may upgrade relock under a running process: then the files are another version's, or gone."""
    names = script_names()
    load.cache_clear()
    load_all.cache_clear()
    spec(ttl=17.0)
    monkeypatch.setattr(_scripts, "find_folder", lambda: tmp_path / "gone")
    for name in names:
        assert load(name).name == name
    assert spec(ttl=18.0, note="a note of each job's own").options.note, "other options need no file either"


def test_locks_with_the_same_options_share_what_they_say() -> None:
    assert spec().templates is spec(patience=1.0).templates
    assert spec().templates is not spec(ttl=20.0).templates


def test_a_note_stands_behind_the_count_in_each_request_that_writes_one_and_in_no_other() -> None:
    plain, noted = spec().templates, spec(note="w\u00e9").templates
    assert (plain.usual, noted.usual) == (1, b"1 w\xc3\xa9")
    for one, other in zip(plain, noted, strict=True):
        if not isinstance(one, Prepared) or not isinstance(other, Prepared):
            assert one in (other, 1)
        elif one.script.name in ("release", "extend"):
            assert one.others == other.others
        else:
            assert other.others == one.others.replace(b"$1\r\n1\r\n", b"$5\r\n1 w\xc3\xa9\r\n", 1)
    assert [spec().value_of(2), spec(note="why").value_of(2)] == [2, b"2 why"]
