"""Verdicts: a fault counts if it struck something, and the time to the next grant from when the lock was free."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from support.servers import Server

from chaos.field import Blow, FieldPlan
from chaos.permits import left_over, too_many
from chaos.records import FOREVER, History, Operation, Outcome
from chaos.results import Run, added, commit, load, save
from chaos.verdict import Finding, judge, summary

TTL = 1.0
PLAN = FieldPlan(masters=1, seed="", ttl=TTL)
END = 100.0


def turn(number: int, worker: str, called: float, begin: float, end: float, **changes: Any) -> list[Operation]:
    """Return the calls of a hold from `begin` to `end`, whose acquire was called at `called`."""
    grant = Operation(number, worker, "a", "acquire", called, begin, token=number, count=1, until=end + 0.5)
    return [evolve(grant, **changes), Operation(number + 1, worker, "a", "release", end, end + 0.01, level=1)]


def verdict(operations: list[Operation], *blows: Blow, limit: int = 0) -> Finding:
    return judge(evolve(PLAN, limit=limit), History(operations), blows, stall=0.0, end=END)


def blow(kind: str, begin: float, end: float, **changes: Any) -> Blow:
    return evolve(Blow(kind, "all", (0,), begin=begin, end=end), **changes)


def test_what_a_fault_met_is_counted() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 3.0, 4.1, 4.2)
    tally = verdict(operations, blow("masters stopped", 3.5, 3.6)).faults["masters stopped"]
    assert (tally.struck, tally.missed, tally.holds, tally.waits, tally.renewals) == (1, 0, 1, 1, 0)


def test_a_renewal_is_in_flight_where_one_was_due() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0)
    assert verdict(operations, blow("masters stopped", 2.3, 2.4)).faults["masters stopped"].renewals == 1
    assert verdict(operations, blow("masters stopped", 2.4, 2.5)).faults["masters stopped"].renewals == 0


def test_a_fault_that_struck_nothing_does_not_count() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0)
    for missed in (
        blow("masters stopped", 5.0, 6.0),
        blow("lost replies", 3.0, 3.1, hits=0),
        blow("holder killed", 3.0, 3.1, masters=(), process="p2"),
        blow("holder killed", 3.0, 3.1, masters=(), process=None),
    ):
        tally = verdict(operations, missed).faults[missed.kind]
        assert (tally.struck, tally.missed) == (0, 1), missed


def test_a_killed_holder_was_struck_though_it_told_nothing_after_that() -> None:
    (grant, _) = turn(1, "p1.t0", 1.0, 2.0, 4.0, killed=2.9)
    struck = blow("holder killed", 3.0, 3.1, masters=(), process="p1")
    assert verdict([grant], struck).faults["holder killed"].holds == 1


@pytest.mark.parametrize(("granted", "is_late"), [(4.5, False), (14.5, True)])
def test_the_time_to_the_next_grant_counts_from_the_release(granted: float, is_late: bool) -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, granted, granted + 1)
    finding = verdict(operations, blow("masters stopped", 3.0, 3.5))
    assert finding.faults["masters stopped"].longest == pytest.approx(granted - 4.0)
    assert bool(finding.late) == is_late
    assert finding.is_good == (not is_late)


def test_the_time_counts_from_the_first_call_of_an_acquire() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 50.0, 50.25, 51.0)
    finding = verdict(operations, blow("masters stopped", 3.0, 3.5))
    assert finding.faults["masters stopped"].longest == pytest.approx(0.25)


def test_a_worker_without_a_grant_waits_to_the_end() -> None:
    waiting = Operation(3, "p2.t0", "a", "acquire", 2.5, END + 1, outcome="refused")
    finding = verdict([*turn(1, "p1.t0", 1.0, 2.0, 4.0), waiting], blow("masters stopped", 3.0, 3.5))
    assert finding.late
    unknown = evolve(waiting, returned=FOREVER, outcome="unknown")  # its worker was killed, and no longer waits
    assert not verdict([*turn(1, "p1.t0", 1.0, 2.0, 4.0), unknown], blow("masters stopped", 3.0, 3.5)).late


@pytest.mark.parametrize(("worker", "is_late"), [("p2.t0", False), ("p3.t0", True)])
def test_a_lock_that_only_a_blocked_loop_wants_may_stay_free(worker: str, *, is_late: bool) -> None:
    """The bound holds only for workers that can take the lock."""
    stuck = Operation(5, "p2.t1", "a", "acquire", 2.6, 14.5, outcome="refused")
    operations = [*turn(1, "p1.t0", 1.0, 2.0, 4.0), *turn(3, worker, 2.5, 14.0, 15.0), stuck]
    struck = blow("loop blocked in a wait", 3.0, 13.9, masters=(), process="p2", reach="waiter")
    assert bool(verdict(operations, struck).late) == is_late


@pytest.mark.parametrize(("others", "is_late"), [(("0",), False), ((), True)])
def test_a_call_that_may_wait_for_what_a_blocked_loop_keeps_does_not_ask_for_a_later_lock(
    others: tuple[str, ...], *, is_late: bool
) -> None:
    stuck = Operation(5, "p2.t1", "0", "acquire", 2.6, 14.5, outcome="refused", others=("1",))
    operations = [*turn(1, "p1.t0", 1.0, 2.0, 4.0), *turn(3, "p3.t0", 2.5, 14.0, 15.0, others=others), stuck]
    struck = blow("loop blocked in a wait", 3.0, 13.9, masters=(), process="p2", reach="waiter")
    assert bool([one for one in verdict(operations, struck).late if "grant of a " in one]) == is_late


def test_if_masters_moved_the_time_counts_from_then() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, 14.0, 15.0)
    tallies = verdict(operations, blow("FAILOVER", 5.0, 16.0, since=10.0)).faults
    assert tallies["FAILOVER"].longest == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("begins", "granted", "is_late"), [(4.5, 14.5, False), (4.5, 44.5, True), (10.0, 14.5, True), (14.6, 14.5, True)]
)
def test_a_fault_that_came_before_the_next_grant_and_within_the_bound_may_delay_it_too(
    begins: float, granted: float, *, is_late: bool
) -> None:
    """Waves of several faults do not wait for their effect, but more faults are no excuse for a stuck lock."""
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, granted, granted + 1)
    first = [blow("masters stopped", 3.0, 3.5, wave=1), blow("lost replies", 3.1, 3.5, wave=1)]
    finding = verdict(operations, *first, blow("waiter stopped", begins, 16.5, masters=(), process="p2", wave=2))
    assert bool([one for one in finding.late if "lost replies" in one]) == is_late
    assert finding.faults["several at once"].longest == pytest.approx(granted - 4.0)


def crowd(count: int) -> list[Operation]:
    """Return so many turns of one worker that comes again and again, of half a second each."""
    turns = [turn(10 + 2 * i, "p1.t0", 2.0 + 0.5 * i, 2.1 + 0.5 * i, 2.4 + 0.5 * i) for i in range(count)]
    return [operation for one in turns for operation in one]


@pytest.mark.parametrize(("count", "stopped", "is_starved"), [(60, 0.0, True), (10, 0.0, False), (60, 12.0, False)])
def test_a_worker_that_is_passed_over_again_and_again_is_starved(
    count: int, stopped: float, *, is_starved: bool
) -> None:
    """A long wait is no starvation if no other worker is served meanwhile, or its own process is stopped."""
    waiter = turn(1, "p2.t0", 1.0, 32.5, 33.0, token=200)
    struck = blow("waiter stopped", 5.0, 5.0 + stopped, masters=(), process="p2")
    late = [sentence for sentence in verdict([*waiter, *crowd(count)], struck).late if "came later" in sentence]
    assert bool(late) == is_starved


def test_a_worker_that_was_refused_after_a_long_wait_is_starved_as_well() -> None:
    refused = Operation(1, "p2.t0", "a", "acquire", 1.0, 32.5, outcome="refused")
    assert any("came later" in sentence for sentence in verdict([refused, *crowd(60)]).late)


def test_a_hold_is_not_lost_beside_output_that_nobody_reads() -> None:
    grant, release = turn(1, "p1.t0", 4.0, 4.1, 6.0, until=5.5)
    operations = [grant, evolve(release, outcome="failed")]
    unread = blow("output that nobody reads", 1.0, 9.0, masters=(), process="p1", calm_from=3.0)
    assert {one.check for one in verdict(operations, unread).violations} == {"kept"}
    together = verdict(operations, unread, blow("FLUSHALL", 3.0, 3.1))
    assert together.violations == [], "the other fault may take the hold away"


def test_a_fault_that_had_to_strike_and_did_not_is_named() -> None:
    finding = verdict(
        turn(1, "p1.t0", 1.0, 2.0, 4.0), blow("FAILOVER", 2.5, 2.6), blow("failing back", 5.0, 6.0, wave=2)
    )
    finding.expected = {"FAILOVER", "failing back", "FLUSHALL"}
    assert finding.missing == ["FLUSHALL", "failing back"]
    assert "never struck: FLUSHALL, failing back" in summary([("it", finding)])


def test_what_a_lone_master_promised_ends_when_its_clock_steps() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, 3.2, 3.3)
    assert verdict(operations, blow("masters stopped", 3.0, 3.5)).violations
    assert not verdict(operations, blow("clock ahead and back", 3.1, 3.5, steps=[3.1])).violations


def test_an_acquire_that_waited_for_another_hold_is_counted() -> None:
    waited = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 3.0, 4.1, 4.2)
    assert verdict([*waited, *turn(5, "p1.t0", 5.0, 5.1, 5.2)]).contended == 1


GOOD = verdict(turn(1, "p1.t0", 1.0, 2.0, 4.0), blow("masters stopped", 3.0, 3.5))
BAD = verdict(turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, 3.2, 3.3), blow("masters stopped", 3.0, 3.5))


def test_results_of_several_runs_add_up(tmp_path: Path) -> None:
    path = tmp_path / "results" / "result.json"
    for seed, finding in (("7", GOOD), ("8", BAD)):
        save(Run(seed, {1: finding}, {"no guard": ["intervals"]}), path)
    runs = load(path)
    assert [run["seed"] for run in runs] == ["7", "8"]
    assert [run["good"] for run in runs] == [True, False]
    total = added(runs)[1]
    assert total["acquisitions"] == 3
    assert len(total["violations"]) == len(BAD.violations)
    assert total["faults"]["masters stopped"]["struck"] == 2
    longest = max(one.faults["masters stopped"].longest for one in (GOOD, BAD))
    assert total["faults"]["masters stopped"]["longest"] == pytest.approx(longest, abs=0.001)


def test_a_run_that_goes_on_replaces_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    save(Run("6", {5: GOOD}), path)
    run = Run("7", {1: evolve(GOOD)})
    save(run, path)
    run.totals[1].add(BAD)
    save(run, path)
    assert [(one["seed"], sum(total["acquisitions"] for total in one["masters"].values())) for one in load(path)] == [
        ("6", 1),
        ("7", 3),
    ]


def test_what_is_tested_is_named_with_a_mark_if_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code").write_text("one")
    git("add", "src")
    git("commit", "-m", "one")
    clean = commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "notes").write_text("nothing that is tested")
    git("add", "notes")
    git("commit", "-m", "notes")
    assert commit(tmp_path) == clean
    (tmp_path / "src" / "code").write_text("two")
    assert commit(tmp_path) == f"{clean}-dirty"


def test_a_control_that_is_not_noticed_is_bad() -> None:
    assert not Run("7", {}, {"no guard": []}).is_good


def of_two(number: int, called: float, returned: float, outcome: Outcome = "refused") -> list[Operation]:
    """Return the calls of a worker's `lock_all` of "a" and "b"."""
    one = Operation(number, f"p{number}.t0", "a", "acquire", called, returned, outcome, token=number, others=("b",))
    return [one, evolve(one, number=number + 1, lock="b", others=("a",))]


@pytest.mark.parametrize(
    ("changes", "is_deadlock"),
    [({}, True), ({"granted": True}, False), ({"struck": 20.0}, False), ({"waited": 20.0}, False)],
)
def test_a_call_for_several_locks_that_waits_while_nobody_gets_one_is_a_deadlock(
    changes: dict[str, float], *, is_deadlock: bool
) -> None:
    """Other workers' grants of one of the locks, and the time of faults, show that it only waits for long."""
    waits = of_two(1, 10.0, 10.0 + changes.get("waited", 35.0))
    operations = [*waits, *(turn(11, "p9.t0", 25.0, 26.0, 27.0) if "granted" in changes else [])]
    finding = verdict(operations, blow("masters stopped", 12.0, 12.0 + changes.get("struck", 0.1)))
    found = [one for one in finding.violations if one.check == "deadlock"]
    assert [one.lock for one in found] == ["a"] * is_deadlock


@pytest.mark.parametrize(("lock", "is_late"), [("a", False), ("b", True)])
def test_a_lock_is_not_free_while_a_call_may_have_it_that_waits_for_another(lock: str, *, is_late: bool) -> None:
    """Such a call holds only names before the one for which it waits: "b" is free, and nobody gets it."""
    operations = [
        evolve(one, lock=lock) for one in turn(11, "p8.t0", 1.0, 2.0, 4.0) + turn(13, "p9.t0", 3.0, 24.0, 25.0)
    ]
    finding = verdict([*operations, *of_two(1, 3.5, 23.9)], blow("masters stopped", 3.0, 3.5))
    assert bool([one for one in finding.late if f"grant of {lock} " in one]) == is_late


@pytest.mark.parametrize(("second_until", "is_late"), [(12.0, False), (4.5, True)])
def test_a_semaphore_is_free_once_it_has_fewer_holders_than_its_limit(second_until: float, *, is_late: bool) -> None:
    """The waiter gets what the first holder released last, or waits beside two free permits."""
    holders = [*turn(1, "p1.t0", 1.0, 2.0, 12.5), *turn(3, "p2.t0", 1.0, 2.1, second_until)]
    operations = [evolve(one, slot=int(one.number > 2)) for one in holders]
    operations += [evolve(one, slot=1) for one in turn(5, "p3.t0", 2.5, 12.6, 13.0)]
    finding = verdict(operations, blow("masters stopped", 3.0, 3.5), limit=2)
    assert bool(finding.late) == is_late
    assert not finding.violations


def permits(slots: list[int], limit: int = 2) -> list[str]:
    """Return what is found if so many workers hold these slots at the same time."""
    turns = [turn(2 * i, f"p{i}.t0", 1.0, 2.0 + i / 10, 4.0) for i in range(len(slots))]
    operations = [evolve(one, slot=slot) for slot, calls in zip(slots, turns, strict=True) for one in calls]
    return [one.check for one in verdict(operations, limit=limit).violations]


def test_each_slot_has_one_owner_and_no_slot_is_beyond_the_limit() -> None:
    assert permits([0, 1]) == []
    assert {*permits([0, 0])} == {"intervals", "model"}
    assert permits([0, 2]) == ["permits"], "a slot that is not there"
    assert permits([0, 1, 2]) == ["permits", "permits"], "that slot, and one holder too many"


def test_a_permit_that_was_released_leaves_room() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 1.0, 2.1, 9.0) + turn(5, "p3.t0", 1.0, 4.2, 8.0)
    assert not too_many([evolve(one, slot=(one.number - 1) // 2 % 2) for one in operations], 2)


def test_what_workers_leave_of_a_semaphore_on_a_master_is_found(server: Server) -> None:
    """The last token stays, so that tokens rise."""
    with server.client() as client:
        client.set("relock:{a}:sem:token", 1)
        assert left_over([server], within=0.0) == []
        client.hset("relock:{a}:sem", "owner", 0)
    assert [(one.check, one.lock) for one in left_over([server], within=0.0)] == [("left", "relock:{a}:sem")]


def test_tokens_rise_in_each_slot() -> None:
    """Tokens of different slots need not rise on several masters."""
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0, token=9) + turn(3, "p2.t0", 5.0, 6.0, 7.0, token=5)
    one_slot = [evolve(one, slot=0) for one in operations]
    assert {one.check for one in verdict(one_slot, limit=2).violations} == {"tokens", "model"}
    assert not verdict([evolve(one, slot=one.number // 3) for one in operations], limit=2).violations


def test_a_call_for_several_locks_may_be_overtaken() -> None:
    operations = [*crowd(60), *of_two(1, 2.0, 40.0)]
    assert not [one for one in verdict(operations).late if "came later" in one]
