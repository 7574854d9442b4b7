"""Facts that a socket has shown of its master, the words that scripts get on it, and the meaning of unusual replies."""

from typing import Any

import pytest

from relock._core.effects import Failure
from relock._core.master_facts import NAMELESS, InDoubt, MasterFacts, Problem, Stepped, WithoutVote, make_facts
from relock._core.socket_facts import SocketFacts
from relock._errors import ConfigurationError
from relock._options import ClientOptions

SERVER, OTHER = b"run:repl", b"other:repl"
TIME = [b"110", b"0"]


def make(*, guard: float = 30.0, is_one_of_several: bool = True) -> tuple[SocketFacts, MasterFacts]:
    """Return a socket to a master whose clock showed 110 at our time 10, as the client knows to the microsecond."""
    options = ClientOptions(restart_guard=guard)
    facts = make_facts("ab" if is_one_of_several else "a", options)[0]
    facts.see_incarnation(SERVER)
    facts.offset.see(100.0, 100.0, 10.0)
    return SocketFacts(facts, options), facts


# When it is opened ----------------------------------------------------------------------------------------------------


def test_an_opened_socket_knows_its_server_the_time_and_the_guard_of_others() -> None:
    shown, facts = make(guard=0.0)
    assert shown.introduced(SERVER, TIME, [None]) == []
    assert (shown.incarnation, shown.opened_us, shown.guarded, facts.has_shown_marker) == (
        SERVER,
        110_000_000,
        False,
        False,
    )
    (problem,) = shown.introduced(SERVER, TIME, [b"60000"])
    assert (shown.guard_ms, shown.guarded, facts.has_shown_marker) == (60_000, True, True)
    assert isinstance(problem, Problem)


@pytest.mark.parametrize(
    ("time", "marker"),
    [(b"110", [None]), ([b"110"], [None]), ([b"-1", b"0"], [None]), (TIME, []), (TIME, b"60000"), (TIME, [7])],
)
def test_what_no_server_says_is_refused(time: Any, marker: Any) -> None:
    with pytest.raises(ValueError, match=r"no time|no field of the marker"):
        make()[0].introduced(SERVER, time, marker)


def test_an_error_in_place_of_a_reply_is_raised() -> None:
    for replies in ((OSError("no"), [None]), (TIME, OSError("no"))):
        with pytest.raises(OSError, match="no"):
            make()[0].introduced(SERVER, *replies)


def test_a_guard_of_others_that_this_client_cannot_keep_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="refuses INFO"):
        make(guard=0.0)[0].introduced(NAMELESS, TIME, [b"60000"])
    with pytest.raises(ConfigurationError, match="another program"):
        make(guard=0.0)[0].introduced(SERVER, TIME, [b"x"])
    shown, _ = make()
    shown.introduced(SERVER, TIME, [b"x"])
    assert shown.guard_ms == 30_600, "the scripts begin the client's own guard"


def test_a_marker_without_a_guard_must_be_named_all_the_same_also_to_a_server_without_a_name() -> None:
    """Others may begin a guard there at any moment."""
    for incarnation in (SERVER, NAMELESS):
        shown, _ = make(guard=0.0)
        assert shown.introduced(incarnation, TIME, [b"0"]) == []
        assert (shown.guarded, shown.guard_ms) == (True, 0)


def test_a_smaller_guard_of_others_changes_nothing() -> None:
    shown, _ = make()
    assert shown.introduced(SERVER, TIME, [b"10000"]) == []
    assert shown.guard_ms == 30_600


# The scripts' words ---------------------------------------------------------------------------------------------------


def named_guard(shown: SocketFacts) -> bytes:
    """Return the guard that a request names, as it is packed."""
    shown.identify()
    assert shown.identity.endswith(shown.identity_tail.removeprefix(b"\r\n"))
    return shown.identity_tail.split(b"\r\n")[-2]


def test_a_guard_is_named_below_0_until_a_quorum_is_judged_or_a_marker_was_seen() -> None:
    for is_marker in (True, False):
        shown, facts = make()
        assert named_guard(shown) == named_guard(shown) == b"-30600"
        facts.has_shown_marker = is_marker
        facts.opened()
        assert named_guard(shown) == (b"30600" if is_marker else b"-30600"), (
            "a guard is named below 0 with one of two masters and no marker"
        )
        facts.peers[1].opened()
        assert named_guard(shown) == b"30600", "a quorum changes the name on older connections, too"


def test_scripts_are_told_whether_they_may_ask_the_server_what_it_is() -> None:
    for refused, sign in (([], b"?"), ([b"INFO", b"ERR no"], b"!")):
        shown, facts = make()
        facts.tried_in_scripts(refused, TIME)
        shown.introduced(SERVER, TIME, [None])
        assert shown.identity_head == b"$%d\r\n%b%b" % (len(SERVER) + 17, SERVER, sign)


def test_a_guard_that_others_have_is_named_as_theirs() -> None:
    shown, facts = make()
    facts.has_shown_marker = True
    assert named_guard(shown) == b"30600"
    facts.guard_ms = 60_000  # as the session does when another master shows that guard
    assert named_guard(shown) == b"+60000"


def test_a_guard_that_another_master_shows_later_holds_on_a_socket_that_was_opened_without_one() -> None:
    shown, facts = make(guard=0.0)
    shown.introduced(SERVER, TIME, [None])
    facts.peers[1].found_guard(60_000)
    shown.identify()
    assert (shown.guarded, shown.guard_ms) == (True, 60_000)


def test_a_vote_shows_a_marker_though_no_quorum_is_judged() -> None:
    shown, _ = make()
    assert named_guard(shown) == b"-30600"
    shown.voted_us = 110_000_000
    assert named_guard(shown) == b"30600"


def test_a_vote_without_a_guard_shows_no_marker() -> None:
    shown, facts = make(guard=0.0)
    shown.voted_us = 110_000_000
    shown.note_marker()
    assert not facts.has_shown_marker


# Unusual replies ------------------------------------------------------------------------------------------------------


def look(shown: SocketFacts, *reply: Any, step: float = 0.0, sent_at: float = 10.0) -> Any:
    """Return the outcome of a reply, and the news."""
    return shown.look_into([*reply], step, sent_at, 10.0)


def test_a_refusal_at_a_first_contact_is_no_time_without_a_vote() -> None:
    shown, facts = make()
    named_guard(shown)
    failure, news = look(shown, b"no_vote", 110_000_000, 110_000_000)
    assert isinstance(failure, Failure)
    assert (failure.sent, failure.permanent, facts.has_shown_marker, news) == (False, False, False, [])
    assert "before a quorum of the masters was reached" in failure.why
    reply, (without_vote,) = look(shown, b"no_vote", 110_000_000, 140_000_000)
    assert (reply[0], round(without_vote.seconds, 3), facts.has_shown_marker) == (b"no_vote", 30.0, True)
    assert isinstance(without_vote, WithoutVote)


@pytest.mark.parametrize(
    ("until_us", "opened_us", "is_retired"),
    [(140_000_000, 110_000_000, False), (110_000_000, 110_000_000, True), (150_000_000, 110_000_000, True)],
    ids=["an older guard", "a larger guard of others", "a guard that began later"],
)
def test_a_socket_is_used_no_more_where_it_would_name_what_is_over(
    until_us: int, opened_us: int, is_retired: bool
) -> None:
    shown, facts = make()
    facts.has_shown_marker = True
    named_guard(shown)
    shown.opened_us = opened_us
    look(shown, b"no_vote", 110_000_000, until_us)
    assert shown.is_retired is is_retired


def test_what_one_of_several_masters_gives_with_a_step_counts_for_nothing() -> None:
    for is_one_of_several in (True, False):
        shown, _ = make(is_one_of_several=is_one_of_several)
        answer, news = look(shown, b"granted", 115_000_000, 7, step=5.0)
        assert news == [Stepped(5.0, 115_000_000)]
        assert isinstance(answer, Failure) is is_one_of_several
        assert look(shown, b"refused", 115_000_000, 0, 0, b"", step=5.0)[0][0] == b"refused"


def test_what_was_asked_before_a_step_counts_for_nothing_but_an_extension_of_a_hold() -> None:
    shown, facts = make()
    facts.offset.see(105.0, 105.0, 10.5)
    assert isinstance(look(shown, b"granted", 115_600_000, 7, sent_at=10.4)[0], Failure)
    assert isinstance(look(shown, b"extended", 115_600_000, sent_at=10.4)[0], Failure)
    assert look(shown, b"extended", 115_600_000, sent_at=10.6)[0][0] == b"extended"


def test_a_step_of_unknown_direction_is_news() -> None:
    shown, facts = make()
    facts.offset.see(99.805, 99.815, 40.0)  # 30 s after the known sample, which agrees with either
    facts.offset.see(100.12, 100.16, 40.02)
    assert facts.offset.is_in_doubt
    assert look(shown, b"absent", 140_140_000)[1] == [InDoubt()]
