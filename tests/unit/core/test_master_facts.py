"""Facts of a master, and news of them: the server, its clock, its vote, its guard."""

from typing import Any

import pytest
import redis

from relock._core import master_facts
from relock._core.clocks import NOT_YET, Offset
from relock._core.master_facts import (
    ANSWERS_SECONDS,
    GUARD_MS_END,
    NAMELESS,
    STEPS_MAX,
    UNKNOWN,
    Back,
    Down,
    Known,
    MasterFacts,
    Moved,
    Problem,
    Seen,
    Stepped,
    WithoutVote,
    as_guard_ms,
    make_facts,
)
from relock._core.quorum import NEVER
from relock._errors import ConfigurationError
from relock._options import ClientOptions

GUARD = ClientOptions(restart_guard=30.0).guard_ms / 1000
SERVER, OTHER = b"run:repl", b"other:repl"
INFO = [b"run_id:run", b"role:master\r\nmaster_replid:repl", b"maxmemory_policy:noeviction"]
REFUSED = redis.ResponseError("this user has no permissions to run the 'info' command")


def make(guard: float = 30.0, *, masters: int = 2) -> MasterFacts:
    """Return one of several masters; at our time 10 its clock showed 110, as the client knows to the microsecond."""
    facts = make_facts("abc"[:masters], ClientOptions(restart_guard=guard))[0]
    facts.see_incarnation(SERVER)
    facts.offset.see(100.0, 100.0, 10.0)
    return facts


def step(facts: MasterFacts, ahead: float, now: float) -> int:
    """Let the master's clock step; return the time that it then shows."""
    shown_us = int((ahead + now) * 1e6)
    seconds = facts.offset.see(ahead, ahead, now)
    assert facts.stepped(seconds, shown_us) == [Stepped(seconds, shown_us)]
    return shown_us


# The server's identity ------------------------------------------------------------------------------------------------


def test_a_server_names_itself_and_is_news_once() -> None:
    facts = MasterFacts(0, "a", ClientOptions())
    assert facts.introduce(INFO) == (SERVER, [Moved(), Seen()])
    assert facts.introduce(INFO) == (SERVER, [Seen()])
    assert facts.introduce([b"run_id:other", *INFO[1:]]) == (OTHER, [Moved(), Seen()])


def test_one_server_is_not_two_masters() -> None:
    """A first replica changes the incarnation, but not the process or its data."""
    first, second, third = make_facts("abc", ClientOptions())
    for facts, incarnation in ((first, b"run:repl"), (second, b"run:repl2"), (third, NAMELESS)):
        facts.see_incarnation(incarnation)
    for facts in (first, second):
        with pytest.raises(ConfigurationError, match="a and b are the same server"):
            facts.check_independent()
    third.check_independent()
    second.see_incarnation(NAMELESS)
    for facts in (first, second, third):
        facts.check_independent()


@pytest.mark.parametrize("reply", [None, 7, [b"run_id:run"]])
def test_what_is_no_info_introduces_nobody(reply: Any) -> None:
    with pytest.raises(ValueError, match="no reply to INFO"):
        make().introduce([reply, *INFO[1:]])


@pytest.mark.parametrize(
    ("said", "is_node", "error"),
    [
        (b"role:slave", False, ConfigurationError),
        (b"role:slave", True, ConnectionError),
        (b"redis_mode:cluster", False, ConfigurationError),
    ],
)
def test_a_server_that_can_be_no_master_is_not_known_as_one(said: bytes, is_node: bool, error: type[Exception]) -> None:
    """Sockets to the master are not given up for such a server."""
    facts = MasterFacts(0, "a", ClientOptions(), is_node=is_node)
    facts.see_incarnation(SERVER)
    with pytest.raises(error):
        facts.introduce([b"run_id:replica", said, b""])
    assert facts.incarnation == SERVER


def test_a_node_of_a_cluster_is_one_where_its_client_knows_that() -> None:
    facts = MasterFacts(0, "a", ClientOptions(), is_node=True)
    said = [b"redis_version:7.4.0\r\nredis_mode:cluster\r\nrun_id:run", *INFO[1:]]
    assert facts.introduce(said) == (SERVER, [Moved(), Seen()])
    assert facts.version == "7.4.0"


def test_a_replica_is_not_believed_to_be_the_master_any_more() -> None:
    facts = make()
    assert facts.demoted(OTHER) == []
    assert facts.demoted(SERVER) == [Moved(), Seen()]
    assert (facts.incarnation, facts.demoted(SERVER)) == (UNKNOWN, [])


def test_a_server_that_refuses_info_has_no_name_and_cannot_have_a_guard() -> None:
    """Clients then can't tell whether that server made a grant of its scripts."""
    facts = make(guard=0.0)
    incarnation, (problem, *others) = facts.introduce([REFUSED] * 3)
    assert (incarnation, others) == (NAMELESS, [Moved(), Seen()])
    assert isinstance(problem, Problem)
    assert "refuses INFO" in problem.text
    facts.offset.see(100.0, 100.0, 10.0)
    assert facts.granted_at(110_000_000, NAMELESS, 10.0) == NEVER
    with pytest.raises(ConfigurationError, match="restart_guard=30"):
        make().introduce([REFUSED] * 3)


def test_a_service_that_refuses_time_in_scripts_alone_can_have_no_locks() -> None:
    facts, refused = make(), [b"TIME", b"ERR This Redis command is not allowed from script"]
    with pytest.raises(ConfigurationError, match=r"a: it refuses TIME in scripts \(ERR This Redis .*can't work there"):
        facts.tried_in_scripts(refused, [b"1", b"2"])
    facts.tried_in_scripts(refused, REFUSED)  # a right is missing, which the reply to TIME says
    assert facts.refusals == {"TIME": "ERR This Redis command is not allowed from script"}


def test_where_info_is_refused_in_scripts_a_guard_does_without_it_and_warns_once() -> None:
    refused = [b"INFO", b"ERR no"]
    facts = make()
    assert facts.proof == b"?"
    (problem,) = facts.tried_in_scripts(refused, [b"1", b"2"])
    assert isinstance(problem, Problem)
    assert "a: it refuses INFO in scripts (ERR no)" in problem.text
    assert (facts.proof, facts.tried_in_scripts(refused, [b"1", b"2"])) == (b"!", [])
    unguarded = make(guard=0.0)
    assert (unguarded.tried_in_scripts(refused, [b"1", b"2"]), unguarded.proof) == ([], b"!")
    assert "it refuses INFO in scripts" not in str(unguarded.problems)
    unguarded.found_guard(30_000)
    assert "it refuses INFO in scripts" in unguarded.problems["scripts"], "the guard is another client's"


def test_a_server_that_refuses_messages_is_warned_of_once() -> None:
    """One reason why no waiter is told is enough."""
    facts, refused = make(), [b"PUBLISH", b"NOPERM no"]
    (problem,) = facts.tried_in_scripts(refused, [b"1", b"2"])
    assert isinstance(problem, Problem)
    assert "a: it refuses PUBLISH in scripts (NOPERM no)" in problem.text
    assert facts.problems == {"waking": problem.text}
    assert facts.tried_in_scripts(refused, [b"1", b"2"]) == facts.without_messages("it refuses SUBSCRIBE") == []


@pytest.mark.parametrize(
    ("said", "words"), [([REFUSED] * 3, "it refuses INFO"), ([b"run_id:", *INFO[1:]], "INFO names no run_id")]
)
def test_a_server_without_a_name_can_have_a_guard_by_its_marker_alone(said: list[Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{words}.*restart_guard_by"):
        make().introduce(said)
    facts = MasterFacts(0, "a", ClientOptions(restart_guard=30.0, restart_guard_by="marker"))
    incarnation, (problem, *_) = facts.introduce(said)
    assert (incarnation, facts.proof) == (NAMELESS, b"=")
    assert isinstance(problem, Problem)
    assert words in problem.text
    assert facts.tried_in_scripts([b"INFO", b"ERR no"], [b"1", b"2"]) == [], "scripts do not ask"


@pytest.mark.parametrize("reply", [REFUSED, None, b"TIME", [b"TIME"], [None, b"x"], [b"TIME", 7]])
def test_a_server_that_did_not_run_the_probe_is_asked_again(reply: Any) -> None:
    facts = make()
    facts.tried_in_scripts(reply, [b"1", b"2"])
    assert facts.refusals is None
    facts.tried_in_scripts([], [b"1", b"2"])
    assert facts.refusals == {}


def test_a_problem_is_news_once_until_it_is_gone() -> None:
    facts, evicting = make(), [*INFO[:2], b"maxmemory_policy:allkeys-lru"]
    counts = [len(facts.introduce(said)[1]) for said in (evicting, evicting, INFO, evicting)]
    assert counts == [2, 1, 1, 2], "each introduction also tells that the server was seen"
    assert "allkeys-lru" in facts.problems["eviction"]


def test_another_servers_samples_are_gone_before_its_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub may judge a message between any two steps of a thread that connects."""
    facts = make()
    seen: list[float] = []

    def offset(drift_factor: float) -> Any:
        seen.append(facts.granted_at(110_000_000, OTHER, 10.0))
        return Offset(drift_factor)

    monkeypatch.setattr(master_facts, "Offset", offset)
    facts.see_incarnation(OTHER)
    assert seen == [NEVER]
    assert facts.granted_at(110_000_000, OTHER, 10.0) == NEVER


# Its answers ----------------------------------------------------------------------------------------------------------


def test_it_is_down_once_and_back_once() -> None:
    facts = make()
    assert (facts.failed("reset"), facts.failed("refused"), facts.down) == ([Down("reset")], [], "reset")
    assert (facts.opened(), facts.opened(), facts.down) == ([Back()], [], None)


def test_one_that_goes_on_answering_is_back_but_not_with_its_first_answer() -> None:
    facts = make()
    facts.failed("reset")
    assert facts.answered(10.0) == facts.answered(10.0 + ANSWERS_SECONDS) == []
    facts.failed("silent")
    assert facts.answered(12.0) == []
    assert facts.answered(12.1 + ANSWERS_SECONDS) == [Back()]


def test_a_mistake_is_remembered_only_of_one_that_could_never_be_used() -> None:
    facts, error = make(), ConfigurationError("a replica")
    assert facts.turned_out(error) == [Down("a replica", is_mistake=True)]
    assert facts.config_error is error
    facts.opened()
    facts.turned_out(error)
    assert facts.was_sound
    assert facts.config_error is None
    assert facts.down == "a replica"


# Its vote and its guard -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read_at", "told"), [(10.0, [30.0]), (35.0, [5.0]), (45.0, [])], ids=["at once", "late", "when the guard is over"]
)
def test_a_guard_ends_when_it_ends_though_the_refusal_is_read_late(read_at: float, told: list[float]) -> None:
    """Replies that no call waited for stay on an idle connection until the next call reads them."""
    facts = make()
    news = facts.without_vote(110_000_000, 140_000_000, read_at)
    assert facts.vote_at == pytest.approx(40.0)
    assert [round(one.seconds, 3) for one in news if isinstance(one, WithoutVote)] == told
    assert facts.without_vote(110_000_000, 140_000_000, read_at) == [], "the same guard is not told again"
    assert facts.has_shown_marker, "the master has shown its marker"


def test_a_guard_of_a_master_whose_clock_is_not_known_counts_from_the_reading() -> None:
    facts = make()
    facts.known = Known(SERVER, Offset(0.01))
    facts.without_vote(110_000_000, 140_000_000, 35.0)
    assert facts.vote_at == pytest.approx(65.0)


def test_a_larger_guard_is_told_of_once() -> None:
    """Connections to several masters are opened side by side, and each finds the guard."""
    first, second = make_facts("ab", ClientOptions(restart_guard=30.0))
    (problem,) = first.found_guard(60_000)
    assert isinstance(problem, Problem)
    assert "60.00 s, not 30.60 s" in problem.text
    assert (first.guard_ms, second.guard_ms) == (60_000, 60_000)
    assert second.found_guard(60_000) == []


@pytest.mark.parametrize("field", [b"", b"x", b"-1", b"%d" % GUARD_MS_END, b"9" * 10_000], ids=lambda field: field[:9])
def test_what_can_be_no_guard_is_none(field: bytes) -> None:
    """Programs may write anything there; Python reads no number of so many digits."""
    assert as_guard_ms(field) is None
    assert as_guard_ms(b"%d" % (GUARD_MS_END - 1)) == GUARD_MS_END - 1


# Its clock ------------------------------------------------------------------------------------------------------------


def test_a_grant_has_its_time_from_a_sample_of_the_same_server() -> None:
    assert make().granted_at(110_000_000, SERVER, 10.0) == 10.0
    assert make().granted_at(110_000_000, OTHER, 10.0) == NEVER


def test_a_grant_from_the_future_shows_a_step() -> None:
    assert make().granted_at(111_000_000, SERVER, 10.0) == NOT_YET


def test_a_grant_of_a_master_whose_clock_stepped_a_moment_ago_counts_for_nothing() -> None:
    """Masters may have ended a lease early; a request of our own would not count, either."""
    facts = make()
    shown_us = step(facts, 105.0, 10.5)
    assert facts.granted_at(116_000_000, SERVER, 11.0) == NEVER
    facts.trust(shown_us)
    assert facts.granted_at(116_000_000, SERVER, 11.0) == pytest.approx(11.0, abs=0.01)


@pytest.mark.parametrize(
    ("own", "trusted_at"), [([1, 0], 11.0), ([0, 1], 11.0), ([0], 11.0 + GUARD), ([1], 10.5 + GUARD)]
)
def test_a_step_that_was_ours_excuses_no_other_one(own: list[int], trusted_at: float) -> None:
    """The other step may be judged later, and the client may not have told the master yet that it has no vote."""
    facts = make()
    shown = [step(facts, ahead, now) for ahead, now in ((105.0, 10.5), (110.0, 11.0))]
    for number in own:
        facts.trust(shown[number])
    assert facts.trusted_from == pytest.approx(trusted_at)


def test_a_lone_master_is_trusted_as_soon_as_its_step_is_known() -> None:
    """Votes of a lone master can't be taken."""
    facts = make(masters=1)
    step(facts, 105.0, 10.5)
    assert facts.trusted_from == 10.5


def test_a_step_that_is_told_when_another_server_is_there_makes_nothing_count_earlier() -> None:
    """Threads may find the server between the look at the clock and the note of the step."""
    facts = make()
    step(facts, 105.0, 10.5)
    before = facts.trusted_from
    facts.see_incarnation(OTHER)
    facts.stepped(5.0, 115_600_000)
    assert facts.trusted_from == before


def test_of_a_clock_that_steps_all_the_time_the_last_steps_are_remembered() -> None:
    """A janitor that can't ask the masters trusts none of them again, so it removes no step."""
    facts = make()
    shown = [step(facts, 100.0 + number, 10.0 + number) for number in range(1, STEPS_MAX + 3)]
    assert list(facts._distrusted) == shown[2:]


class LateSteps(dict[int, float]):
    """Steps that still count; right after the first look at all of them, another thread sees one more."""

    def copy(self) -> dict[int, float]:
        seen = dict(self)
        self[7] = 50.0
        return seen


def test_a_step_that_another_thread_sees_while_one_is_excused_still_counts() -> None:
    facts = make()
    shown_us = step(facts, 105.0, 10.5)
    facts._distrusted = LateSteps(facts._distrusted)
    facts.trust(shown_us)
    assert facts.trusted_from == 50.0
