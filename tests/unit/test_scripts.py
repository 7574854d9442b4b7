"""Scripts do what their headers say, and are packed as the headers say."""

import re
from pathlib import Path

import pytest
from support.script_headers import HeaderError, load_checked

from relock._core.lock_spec import TOKEN_SPARE_MS, token_ms
from relock._keys import lock_keys
from relock._scripts import TOKEN_MAX, ScriptError, _expand, find_folder, load, script_names

GOOD = """\
-- Does a thing.
--
-- KEYS
--   lock    hash  the hold
-- ARGV
--   owner   text  who
--   not_after_us us    when it is over
-- RETURNS
--   done    now_us  it is done
-- WRITES
--   none
-- PUBLISHES
--   none
-- REPEATABLE
--   yes

--#include clock

local lock = KEYS[1]
local owner = ARGV[1]
local not_after_us = ARGV[2]

redis.call('HGET', lock, owner, not_after_us)
return { 'done', now_us }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "_lib").mkdir()
    (tmp_path / "_lib" / "clock.lua").write_text("local now_us = 1\n")
    return tmp_path


WORDS = GOOD.replace("done    now_us  it", "'done now_us token'  it").replace(
    "{ 'done', now_us }", "'done ' .. now_us .. ' ' .. digits(owner)"
)


def write(folder: Path, text: str) -> Path:
    (folder / "thing.lua").write_text(text)
    return folder


def test_scripts_and_clients_agree_on_the_largest_token() -> None:
    assert "\nlocal token_max = 8e15 - 1\n" in (find_folder() / "_lib" / "clock.lua").read_text()
    assert TOKEN_MAX == 8e15 - 1


def test_every_script_that_ships_is_what_its_header_says() -> None:
    names = script_names()
    assert len(names) >= 9
    for name in names:
        script = load_checked(name)
        assert script.purpose.endswith(".")
        assert script.statuses


def test_a_good_script_is_loaded_with_its_fragments(folder: Path) -> None:
    script = load_checked("thing", write(folder, GOOD))
    assert script.purpose == "Does a thing."
    assert script.own_arguments == ("owner",)
    assert script.connection_arguments == ("not_after_us",)
    assert b"local now_us = 1" in script.source
    assert b"#include" not in script.source


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("local owner = ARGV[1]", "local who = ARGV[1]", "the body names"),
        ("local lock = KEYS[1]", "local lock = KEYS[2]", "the body names"),
        ("redis.call('HGET', lock, owner, not_after_us)", "redis.call('HGET', KEYS[2], owner, not_after_us)", "KEYS"),
        ("redis.call('HGET', lock, owner, not_after_us)", "redis.call('HGET', lock, owner)", "does not use"),
        ("return { 'done', now_us }", "return { 'undone', now_us }", "returns"),
        ("--   owner   text  who\n", "", "the body names"),
        ("owner   text", "owner   seconds", "unit"),
        ("-- PUBLISHES\n--   none\n", "", "sections"),
    ],
)
def test_a_script_that_is_not_what_its_header_says_is_refused(folder: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(HeaderError, match=complaint):
        load_checked("thing", write(folder, GOOD.replace(old, new)))


def test_a_reply_may_be_in_words(folder: Path) -> None:
    script = load_checked("thing", write(folder, WORDS))
    assert script.in_words == {b"done"}
    assert script.shapes == {b"done": [bytes, int, int]}
    assert script.token_places == {b"done": 2}
    assert not load("inspect").in_words


@pytest.mark.parametrize(
    ("words", "stands_for"),
    [
        (b"queued 7 -1 0 who 5", [b"queued", 7, -1, 0, b"who", 5]),
        (b"queued 7 5 0  5", [b"queued", 7, 5, 0, b"", 5]),
        (b"proposed 7 5 0 a b\r\n 5", [b"proposed", 7, 5, 0, b"a b\r\n", 5]),
        (b"queued 7 5 0 who -5", None),
        (b"queued -7 5 0 who 5", None),
        (b"queued 7 5 0 who", None),
        (b"released 7", None),
    ],
)
def test_words_stand_for_an_array_in_which_only_the_time_to_live_may_be_below_zero(
    words: bytes, stands_for: list[object] | None
) -> None:
    assert load("enqueue").parse_words(words) == stands_for


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'done now_us token'", "done now_us token "),
        ("'done now_us token'", "'done now_us'"),
        ("'done now_us token'", "'gone now_us token'"),
        (" .. ' ' .. digits(owner)", ""),
        ("'done ' .. now_us .. ' ' .. digits(owner)", "{ 'done', now_us, owner }"),
        ("--   'done", "--   gone now_us  it is gone\n--   'done"),
    ],
)
def test_a_reply_in_words_that_is_not_what_its_header_says_is_refused(folder: Path, old: str, new: str) -> None:
    assert old in WORDS
    with pytest.raises(HeaderError, match="returns"):
        load_checked("thing", write(folder, WORDS.replace(old, new)))


def test_a_header_that_mixes_a_calls_arguments_with_its_connections_is_refused(folder: Path) -> None:
    mixed = GOOD.replace(
        "--   owner   text  who\n--   not_after_us us    when it is over\n",
        "--   not_after_us us  when\n--   owner text  who\n",
    )
    mixed = mixed.replace("owner = ARGV[1]", "not_after_us = ARGV[1]").replace(
        "not_after_us = ARGV[2]", "owner = ARGV[2]"
    )
    with pytest.raises(HeaderError, match="its own come first"):
        load_checked("thing", write(folder, mixed))


def test_a_missing_fragment_is_named(folder: Path) -> None:
    with pytest.raises(ScriptError, match=r"clocks\.lua"):
        load("thing", write(folder, GOOD.replace("--#include clock", "--#include clocks")))


def test_a_missing_script_is_named() -> None:
    with pytest.raises(ScriptError, match=re.escape("nothing.lua")):
        load("nothing")


def test_arguments_are_passed_by_name_and_only_by_the_right_ones() -> None:
    script, keys = load("count"), lock_keys("lock", "a")
    call = script.call(keys, lease_ms=5, count=2, owner="me")
    assert call.own == b"$2\r\nme\r\n$1\r\n2\r\n$1\r\n5\r\n", "the arguments are in the header's order"
    for wrong in ({"owner": "me"}, {"owner": "me", "count": 1, "lease_ms": 5, "more": 1}):
        with pytest.raises(TypeError, match="count takes"):
            script.call(keys, **wrong)


def test_a_command_is_packed_as_the_protocol_wants_it() -> None:
    script, keys = load("leave"), lock_keys("lock", "a")
    words = [b"EVALSHA", script.sha.encode(), b"3", keys.lock, keys.queue, keys.waiters, b"m\xc3\xa9"]
    wanted = b"*7\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    call = script.call(keys, owner=b"m\xc3\xa9")
    assert call.pack(b"", guarded=False) == wanted
    assert call.pack(b"", guarded=False) == wanted, "the cache gives the same bytes"
    assert call.pack(b"", guarded=False, source=True).startswith(b"*7\r\n$4\r\nEVAL\r\n")


def test_what_the_connection_knows_stands_between_a_calls_own_arguments_and_the_rest() -> None:
    script, keys = load("heartbeat"), lock_keys("lock", "a")
    call = script.call(keys, 7, b"me:1", client="me", alive_ms=1, queue_ms=2)
    packed = call.pack(b"$4\r\nvoid\r\n", guarded=False)
    words = packed.split(b"\r\n")[2::2]
    assert words[-6:] == [b"me", b"1", b"2", b"void", b"7", b"me:1"]
    assert packed.startswith(b"*%d\r\n" % len(words))


def test_a_prepared_call_is_the_same_as_one_that_was_made_at_once() -> None:
    script, keys = load("acquire"), lock_keys("lock", "a")
    others = {"count": 1, "lease_ms": 5, "token_ms": 6, "fair": 1, "proposal": 0}
    assert script.prepare(**others).call(keys, b"me:1") == script.call(keys, owner=b"me:1", **others)
    with pytest.raises(TypeError, match="is prepared with"):
        script.prepare(count=1)


def test_only_a_guarded_call_names_the_master_key() -> None:
    call = load("acquire").call(lock_keys("lock", "a"), owner="me", count=1, lease_ms=5, token_ms=6, fair=1, proposal=0)
    assert call.keys.master not in call.pack(b"", guarded=False)
    assert call.keys.master in call.pack(b"", guarded=True)


def test_scripts_read_the_masters_clock_once_and_never_take_a_clients() -> None:
    for name in script_names():
        source = load(name).source.decode()
        assert source.count("redis.call('TIME')") == 1


@pytest.mark.parametrize("name", ["acquire", "release", "count", "extend"])
def test_the_usual_case_ends_before_anything_is_defined_and_makes_no_table(name: str) -> None:
    """Definitions and tables take most of a script's time: see `tests/bench/scripts.py`."""
    usual = {"acquire": "granted", "release": "released", "count": "counted", "extend": "extended"}[name]
    text = (find_folder() / f"{name}.lua").read_text().partition("\n\n")[2]
    text = text.replace("--#include admit", (find_folder() / "_lib" / "admit.lua").read_text())
    text = re.sub(r"^if not has_vote then\n(?:(?: .*)?\n)*end$", "", text, flags=re.MULTILINE)  # not the usual case
    code = re.sub(r"--.*", "", _expand(find_folder(), text))
    before, is_there, _ = code.partition(f"return '{usual} '")
    assert is_there
    assert not {"function", "{", "string.format", "unpack"} & set(re.findall(r"[\w.]+|\{", before))


def test_scripts_and_clients_agree_for_how_long_a_token_outlives_its_lease() -> None:
    assert f"\nlocal token_spare_ms = {TOKEN_SPARE_MS}\n" in (find_folder() / "_lib" / "spare.lua").read_text()
    assert token_ms(0.0001) == 1 + TOKEN_SPARE_MS


def test_a_piece_of_a_fragment_is_put_in_alone_also_in_another_fragment(folder: Path) -> None:
    (folder / "_lib" / "clock.lua").write_text("--#include time now\n")
    (folder / "_lib" / "time.lua").write_text("local other\n--#piece now\nlocal now_us = 2\n--#end\nlocal more\n")
    source = load("thing", write(folder, GOOD)).source
    assert source.startswith(b"local now_us = 2\n\nlocal lock")


def test_a_piece_that_a_fragment_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ScriptError, match=r"clock\.lua: there is no piece now"):
        load("thing", write(folder, GOOD.replace("--#include clock", "--#include clock now")))


@pytest.mark.parametrize("word", [r"publish\b", "numsub", "client:"])
def test_one_fragment_alone_sends_messages_and_names_channels(word: str) -> None:
    """A server may refuse a message, and `tell` decides the consequences; for Redisson's waiters there are none."""
    using = set()
    for path in Path(str(find_folder())).rglob("*.lua"):
        if re.search(word, re.sub(r"--.*", "", path.read_text()), re.IGNORECASE):
            using.add(path.stem)
    others = {"probe", "freed_for_redisson"}  # the probe only tries if a message is refused
    assert using - others == {"channel", "channel_on_cluster"}
    includes = {path.stem for path in Path(str(find_folder())).rglob("*.lua") if SENDS.search(path.read_text())}
    assert includes == {"tell"}


SENDS = re.compile(r"--#include channel (?:send|counts)\b")


@pytest.mark.parametrize(("fragment", "count"), [("tell", 1), ("channel", 1), ("channel_on_cluster", 2)])
def test_no_script_fails_because_a_message_is_refused(fragment: str, count: int) -> None:
    code = re.sub(r"--.*", "", (find_folder() / "_lib" / f"{fragment}.lua").read_text())
    assert "redis.call" not in code
    assert code.count("redis.pcall") == count


TELLS = re.compile(r"\b(?:hand_usual|tell_first|hand_over|hand_permit|pass_on|wake_\w+)\b")
ENDS = {"release": 3, "give_back": 3, "force_release": 1}  # scripts that end a hold, by the ends of their names


@pytest.mark.parametrize(("kind", "count"), ENDS.items())
def test_a_hold_ends_before_the_first_message_that_tells_of_it(kind: str, count: int) -> None:
    """A server may refuse a message in words that no test knows."""
    names = [name for name in script_names() if name.removeprefix("read_").removeprefix("permit_") == kind]
    assert len(names) == count
    for name in names:
        code = re.sub(r"--.*", "", (find_folder() / f"{name}.lua").read_text().partition("\n\n")[2])
        end, message = re.search(r"'H?DEL'", code), TELLS.search(code)
        assert end is not None
        assert message is not None
        assert end.start() < message.start(), name


def test_numbers_become_text_only_by_digits() -> None:
    for path in Path(str(find_folder())).rglob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text())
        assert "tostring" not in code or path.stem == "on_own", (
            "no script turns numbers into text, except for an error's"
        )
        if path.stem != "digits":
            assert "string.format" not in code
