"""The history checker finds the violations of bad histories, written by hand, and none in good ones."""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from chaos.checker import check, check_kept, check_model, check_told, holds_of, without_promise
from chaos.records import FOREVER, Collision, History, Loss, Operation, Update, Write

OPERATIONS = 10_000
SECONDS_MAX = 10.0


class Story:
    """A history that a test writes call by call, each a tenth of a second long unless it says otherwise."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.writes: list[Write] = []
        self.updates: list[Update] = []
        self.collisions: list[Collision] = []
        self._numbers = itertools.count(1)
        self._levels: dict[str, int] = {}

    @property
    def history(self) -> History:
        return History(self.operations, self.writes, self.updates, self.collisions)

    def take(self, worker: str, at: float, token: int = 0, **changes: Any) -> Operation:
        """Return an acquire: outermost or nested, as the worker's levels say."""
        level = self._levels.get(worker, 0)
        operation = self._call(worker, "acquire", at, **{"token": token, "level": level, "count": level + 1, **changes})
        if operation.outcome == "ok":
            self._levels[worker] = level + 1
        return operation

    def give(self, worker: str, at: float, **changes: Any) -> Operation:
        """Return a release of one level."""
        level = self._levels.get(worker, 0)
        self._levels[worker] = level - 1
        return self._call(worker, "release", at, **{"level": level, "count": level - 1, **changes})

    def _call(self, worker: str, kind: Any, at: float, **fields: Any) -> Operation:
        fields = {"lock": "a", "returned": at + 0.1, **fields}
        operation = Operation(next(self._numbers), worker, kind=kind, called=at, **fields)
        self.operations.append(operation)
        return operation

    def turn(self, worker: str, at: float, token: int, **changes: Any) -> Operation:
        """Return a whole hold, from `at` for half a second."""
        taken = self.take(worker, at, token, **changes)
        self.give(worker, at + 0.4)
        return taken

    def write(self, grant: Operation, at: float, *, accepted: bool = True, returned: float | None = None) -> None:
        end = at + 0.01 if returned is None else returned
        order = len(self.writes)
        self.writes.append(Write(grant.worker, "a", grant.number, grant.token, at, end, accepted, order))

    def add(self, grant: Operation, at: float, read: int, **changes: Any) -> None:
        """An update of the counter."""
        plain = Update(grant.worker, "a", grant.number, read, at, read + 1, at + 0.05, at + 0.06)
        self.updates.append(evolve(plain, **changes))

    def collide(self, grant: Operation, at: float, other: Operation) -> None:
        self.collisions.append(Collision(grant.worker, "a", grant.number, other.number, at, at + 0.01))


Tell = Callable[[Story], object]

# Good ones ----------------------------------------------------------------------------------------------------------


def one_after_the_other(story: Story) -> None:
    for i, worker in enumerate("xyxz"):
        grant = story.turn(worker, float(i), 10 + i)
        story.write(grant, i + 0.2)
        story.add(grant, i + 0.2, i)


def levels_that_nobody_saw(story: Story) -> None:
    """A process that stands still between a call and the look at its count may have lost the hold by then."""
    story.take("x", 0.0, 5, until=1.0)
    story.take("x", 0.2, 5, count=None)
    story.give("x", 0.9, count=None, returned=3.0)
    story.give("x", 3.1, outcome="failed")
    story.turn("y", 2.0, 6)


def nested_holds(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.take("x", 0.2, 5)
    story.take("x", 0.4, 5)
    for i in range(3):
        story.give("x", 0.6 + 0.2 * i)
    story.turn("y", 2.0, 6)


def calls_that_overlap(story: Story) -> None:
    """Acquire overlap: both began before the first grant; the second is granted while the release is on its way."""
    story.take("x", 0.0, 5, returned=0.5)
    story.take("y", 0.1, 6, returned=1.05)
    story.give("x", 1.0, returned=1.4)
    story.give("y", 1.5)


def a_return_that_comes_late(story: Story) -> None:
    """The first holder learns of its grant after its lease; the second one had the lock long before."""
    story.take("x", 0.0, 5, returned=9.0, until=1.0)
    story.give("x", 9.1, outcome="failed")
    story.turn("y", 2.0, 6, until=3.0)


def a_failed_try(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.take("y", 0.2, outcome="refused", count=0)
    story.give("x", 0.4)
    story.take("y", 0.6, outcome="refused", count=0)  # another worker came first


def an_unknown_acquire(story: Story) -> None:
    story.take("x", 0.0, outcome="unknown", returned=FOREVER)
    story.turn("y", 3.0, 7)


def an_unknown_release(story: Story) -> None:
    story.take("x", 0.0, 5, until=9.0, killed=0.5)
    story.give("x", 0.4, outcome="unknown", returned=FOREVER)
    story.turn("y", 0.5, 6)


def a_killed_holder(story: Story) -> None:
    """No other worker gets the lock before the last deadline that the killed holder knew."""
    story.take("x", 0.0, 5, until=1.0, killed=0.3)
    story.take("y", 0.5, 6, returned=1.01)
    story.give("y", 1.2)


def a_killed_holder_of_two_levels(story: Story) -> None:
    story.take("x", 0.0, 5, until=1.0, killed=0.3)
    story.take("x", 0.15, 5)
    story.turn("y", 1.0, 6)


def a_paused_holder_that_finds_out(story: Story) -> None:
    late = story.take("x", 0.0, 5, until=1.0)
    grant = story.turn("y", 1.5, 6)
    story.write(grant, 1.7)
    story.add(grant, 1.7, 0)
    story.write(late, 2.5, accepted=False)
    story.add(late, 2.5, 0)
    story.give("x", 3.0, outcome="failed")


def a_late_write_that_undoes_an_update(story: Story) -> None:
    """Holders may read a number that the one before wrote after its lease."""
    late = story.take("x", 0.0, 5, until=1.0)
    second = story.turn("y", 1.5, 6)
    story.add(second, 1.6, 0)
    story.add(late, 0.5, 0, called=1.9, returned=1.95, written=7)
    third = story.turn("z", 2.5, 7)
    story.add(third, 2.6, 7)


def a_killed_writer(story: Story) -> None:
    """Killed writers may or may not have written."""
    killed = story.take("x", 0.0, 5, until=1.0, killed=0.3)
    story.add(killed, 0.2, 0, returned=FOREVER)
    for i, (worker, read) in enumerate([("y", 1), ("z", 2)]):
        grant = story.turn(worker, 2.0 + i, 6 + i)
        story.add(grant, 2.2 + i, read)


def a_marker_that_a_dead_holder_left(story: Story) -> None:
    dead = story.take("x", 0.0, 5, until=1.0, killed=0.3)
    story.collide(story.turn("y", 2.0, 6), 2.2, dead)


def two_locks(story: Story) -> None:
    story.take("x", 0.0, 50)
    story.take("y", 0.1, 4, lock="b")


GOOD: list[Tell] = [
    one_after_the_other,
    nested_holds,
    levels_that_nobody_saw,
    calls_that_overlap,
    a_return_that_comes_late,
    a_failed_try,
    an_unknown_acquire,
    an_unknown_release,
    a_killed_holder,
    a_killed_holder_of_two_levels,
    a_paused_holder_that_finds_out,
    a_late_write_that_undoes_an_update,
    a_killed_writer,
    a_marker_that_a_dead_holder_left,
    two_locks,
]

# Bad ones -----------------------------------------------------------------------------------------------------------


def two_holders(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.take("y", 0.5, 6)
    story.give("x", 0.8)
    story.give("y", 0.9)


def two_holders_before_a_deadline(story: Story) -> None:
    """The first holder was killed, or its hold was forgotten, before its lease had run out."""
    story.take("x", 0.0, 5, until=2.0)
    story.turn("y", 1.0, 6)


def a_grant_inside_another(story: Story) -> None:
    """A short hold within a long one, after others."""
    story.turn("w", 0.0, 4)
    story.take("x", 1.0, 5)
    story.turn("y", 2.0, 6)
    story.give("x", 4.0)


def a_grant_inside_that_of_a_third(story: Story) -> None:
    """The hold that it overlaps is not the one that began just before it."""
    story.take("x", 0.0, 5)
    story.turn("y", 1.0, 6)
    story.turn("z", 2.0, 7)
    story.give("x", 4.0)


def a_token_that_falls(story: Story) -> None:
    story.turn("x", 0.0, 6)
    story.turn("y", 1.0, 5)


def a_token_that_falls_much_later(story: Story) -> None:
    for i, token in enumerate([3, 4, 9, 10, 11, 8]):
        story.turn("xyz"[i % 3], float(i), token)


def equal_tokens(story: Story) -> None:
    story.turn("x", 0.0, 5)
    story.turn("y", 1.0, 5)


def a_token_that_stays_for_one_worker(story: Story) -> None:
    story.turn("x", 0.0, 5)
    story.turn("x", 1.0, 5)


def a_nested_hold_with_another_token(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.take("x", 0.2, 6)
    story.give("x", 0.4)
    story.give("x", 0.6)


def a_nested_acquire_that_is_refused(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.take("x", 0.2, outcome="refused", count=1)
    story.give("x", 0.4)


def a_nested_hold_after_somebody_else_came(story: Story) -> None:
    story.take("x", 0.0, 5, until=1.0)
    story.turn("y", 1.5, 6)
    story.take("x", 3.0, 5)


def a_release_by_another(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.give("y", 0.5, level=1, count=0)


def a_release_of_what_nobody_has(story: Story) -> None:
    story.turn("x", 0.0, 5)
    story.give("x", 1.0, level=1, count=0)


def a_release_that_succeeds_after_somebody_else_came(story: Story) -> None:
    story.take("x", 0.0, 5, until=1.0)
    story.turn("y", 1.5, 6)
    story.give("x", 3.0)


def an_outermost_hold_of_two_levels(story: Story) -> None:
    story.take("x", 0.0, 5, count=2)
    story.give("x", 0.4)


def a_nested_hold_that_is_not_counted(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.take("x", 0.2, 5, count=1)
    story.give("x", 0.4)
    story.give("x", 0.6)


def a_release_that_leaves_a_level(story: Story) -> None:
    story.take("x", 0.0, 5)
    story.take("x", 0.2, 5)
    story.give("x", 0.4, count=2)
    story.give("x", 0.6)


def a_nested_release_that_ends_the_hold(story: Story) -> None:
    story.take("x", 0.0, 5, until=9.0)
    story.take("x", 0.2, 5)
    story.give("x", 0.4)
    story.turn("y", 0.7, 6)
    story.give("x", 2.0)


def a_stale_write_that_is_accepted(story: Story) -> None:
    """Stale writes may have the higher token, so that the store can't know that they are stale."""
    late = story.take("x", 0.0, 9, until=1.0)
    story.write(story.turn("y", 1.5, 8), 1.7)
    story.write(late, 2.5)


def a_store_that_does_not_check(story: Story) -> None:
    late = story.take("x", 0.0, 5, until=1.0)
    story.write(story.turn("y", 1.5, 6), 1.7)
    story.write(late, 2.5)


def a_holder_that_the_store_refuses(story: Story) -> None:
    story.write(story.turn("x", 0.0, 5), 0.2)
    story.write(story.turn("y", 1.0, 6), 1.2, accepted=False)


def a_lost_update(story: Story) -> None:
    for i, read in enumerate([0, 1, 1]):
        story.add(story.turn("xyz"[i], float(i), 5 + i), i + 0.2, read)


def a_counter_that_jumps(story: Story) -> None:
    for i, read in enumerate([0, 2]):
        story.add(story.turn("xyz"[i], float(i), 5 + i), i + 0.2, read)


def an_update_lost_although_there_was_a_late_write(story: Story) -> None:
    """The late write was overwritten long ago."""
    late = story.take("x", 0.0, 5, until=1.0)
    story.add(late, 0.5, 0, called=1.1, returned=1.2, written=7)
    for i, read in enumerate([7, 8, 7]):
        story.add(story.turn("yzw"[i], 2.0 + i, 6 + i), 2.2 + i, read)


def a_marker_of_one_who_holds_the_lock(story: Story) -> None:
    """The workers recorded their beliefs wrongly, so that only the marker shows the violation."""
    other = story.take("x", 0.0, 5)
    story.collide(story.take("y", 0.2, 6), 0.4, other)


BAD: list[tuple[Tell, str, str]] = [
    (two_holders, "intervals", "two holders of 'a'"),
    (two_holders, "model", "held the lock"),
    (two_holders_before_a_deadline, "intervals", "two holders"),
    (two_holders_before_a_deadline, "model", "held the lock"),
    (a_grant_inside_another, "intervals", "x (acquire #3"),
    (a_grant_inside_that_of_a_third, "intervals", "z (acquire #4"),
    (a_token_that_falls, "tokens", "a smaller token than"),
    (a_token_that_falls, "model", "later got the smaller token 5"),
    (a_token_that_falls_much_later, "tokens", "a smaller token than"),
    (a_token_that_falls_much_later, "model", "later got the smaller token 8"),
    (equal_tokens, "tokens", "the same token as"),
    (equal_tokens, "model", "with token 5, which"),
    (a_token_that_stays_for_one_worker, "tokens", "the same token as"),
    (a_nested_hold_with_another_token, "model", "its hold has 5"),
    (a_nested_acquire_that_is_refused, "model", "refused a lock that it held itself"),
    (a_nested_hold_after_somebody_else_came, "model", "did not hold the lock"),
    (a_release_by_another, "model", "did not hold the lock"),
    (a_release_of_what_nobody_has, "model", "nobody had it"),
    (a_release_that_succeeds_after_somebody_else_came, "model", "did not hold the lock"),
    (an_outermost_hold_of_two_levels, "model", "has 2 levels, not 1"),
    (a_nested_hold_that_is_not_counted, "model", "has 1 levels, not 2"),
    (a_release_that_leaves_a_level, "model", "has 2 levels, not 1"),
    (a_nested_release_that_ends_the_hold, "model", "held the lock"),
    (a_stale_write_that_is_accepted, "store", "took a stale write of x"),
    (a_store_that_does_not_check, "store", "took a stale write of x"),
    (a_holder_that_the_store_refuses, "store", "refused a write of y"),
    (a_lost_update, "counter", "read 1 from the counter of 'a', but y"),
    (a_counter_that_jumps, "counter", "an update is lost"),
    (an_update_lost_although_there_was_a_late_write, "counter", "read 7"),
    (a_marker_of_one_who_holds_the_lock, "marker", "found the marker of x"),
]


def told(tell: Tell) -> History:
    story = Story()
    tell(story)
    return story.history


@pytest.mark.parametrize("tell", GOOD, ids=lambda tell: tell.__name__)
def test_a_good_history_is_accepted(tell: Tell) -> None:
    assert check(told(tell)) == []


@pytest.mark.parametrize(("tell", "name", "words"), BAD, ids=[f"{tell.__name__}-{name}" for tell, name, _ in BAD])
def test_a_bad_history_is_found_out_in_a_sentence(tell: Tell, name: str, words: str) -> None:
    found = [violation for violation in check(told(tell)) if violation.check == name]
    assert any(words in violation.sentence for violation in found), found


def a_loss(story: Story) -> Operation:
    grant = story.take("p1.t0", 0.0, 5, until=1.0)
    story.give("p1.t0", 2.0, outcome="failed")
    return grant


@pytest.mark.parametrize(
    ("times", "ended", "sentence"),
    [
        (1, {"p1"}, None),
        (0, {"p1"}, "was never told"),
        (0, {"p2"}, None),  # was killed, maybe before it could be told
        (2, {"p1"}, "was told 2 times"),
    ],
)
def test_each_loss_is_told_once(times: int, ended: set[str], sentence: str | None) -> None:
    story = Story()
    a_loss(story)
    losses = [Loss("p1", "a", 5, 1.1, "expired")] * times
    found = check_told(History(story.operations, losses=losses, ended=frozenset(ended)))
    assert [violation.check for violation in found] == ["told"] * (sentence is not None)
    assert all(sentence in violation.sentence for violation in found if sentence)


@pytest.mark.parametrize(
    ("process", "since", "until", "is_found"),
    [
        ("p1", -1.0, 3.0, True),
        ("p1", -1.0, 1.5, True),
        ("p1", 0.05, 3.0, False),
        ("p1", -1.0, 0.9, False),
        ("p2", -1.0, 3.0, False),
    ],
)
def test_a_hold_that_is_lost_though_nothing_strikes_is_found(
    process: str, since: float, until: float, *, is_found: bool
) -> None:
    """Holds count if they began and were over in that time; the moment of the release does not count."""
    story = Story()
    grant = a_loss(story)
    found = check_kept(story.operations, process, since, until)
    assert [violation.sentence for violation in found] == [
        f"what was got by {grant} was lost, though nothing struck it"
    ] * is_found


def test_the_order_in_which_a_history_is_written_down_does_not_matter() -> None:
    for tell in [*GOOD, *(tell for tell, _, _ in BAD)]:
        history = told(tell)
        reverse = History(
            history.operations[::-1], history.writes[::-1], history.updates[::-1], history.collisions[::-1]
        )
        assert sorted(map(str, check(reverse))) == sorted(map(str, check(history)))


def test_after_a_promise_ended_others_may_come_and_tokens_still_rise() -> None:
    operations = told(two_holders_before_a_deadline).operations
    assert check(History(without_promise(operations, 0.9))) == []
    assert check(History(without_promise(operations, 1.2))), "the second grant came before the step"
    falling = told(a_token_that_falls).operations
    assert check(History(without_promise(falling, 0.3))), "rising tokens are promised all the same"


# Speed --------------------------------------------------------------------------------------------------------------


def contended(operations: int, dice: random.Random, workers: int = 12) -> Story:
    """Workers that queue up, nest, try and fail; some are killed, some paused past their lease."""
    story, now, token = Story(), 0.0, 0
    free_at = dict.fromkeys((f"w{i}" for i in range(workers)), 0.0)
    while len(story.operations) < operations:
        worker = min(free_at, key=lambda one: (free_at[one], one))
        asked, now, token = free_at[worker], now + 0.001, token + dice.randrange(1, 5)
        grant = story.take(worker, min(asked, now), token, returned=now + 0.0005)
        if dice.random() < 0.3:
            story.take(worker, now + 0.001, token, returned=now + 0.002)
            story.give(worker, now + 0.003, returned=now + 0.004)
        if dice.random() < 0.2:
            story.take("trier", now + 0.002, outcome="refused", count=0, returned=now + 0.02)
        now += 0.005
        if dice.random() < 0.02:  # killed: it comes no more, and another one takes its place
            story.operations[story.operations.index(grant)] = evolve(grant, until=now + 0.1, killed=now)
            del free_at[worker]
            free_at[f"w{len(story.operations)}+"] = now
            now += 0.1
            continue
        story.give(worker, now, returned=now + 0.003)
        free_at[worker] = now + (5.0 if dice.random() < 0.01 else 0.003)
    return story


def test_a_long_history_is_checked_in_time(seed: int) -> None:
    """The bound is for the checker's work, which grows only with the length, and leaves room for a slow machine."""
    history = contended(OPERATIONS, random.Random(seed)).history
    begin = time.process_time()
    assert check(history) == []
    assert time.process_time() - begin < SECONDS_MAX


def test_a_planted_overlap_is_found_in_a_long_history(seed: int) -> None:
    dice = random.Random(seed)
    story = contended(2_000, dice)
    releases = [one for one in story.operations if one.kind == "release" and one.level == 1]
    victim = dice.choice(releases[:-20])
    story.operations[story.operations.index(victim)] = evolve(victim, called=victim.called + 0.05, returned=FOREVER)
    assert {violation.check for violation in check(story.history)} >= {"intervals", "model"}


# The search ---------------------------------------------------------------------------------------------------------


def some_calls(dice: random.Random) -> list[Operation]:
    """Return a few calls at random times with random results, most of them bad; those of a worker do not overlap."""
    story, tokens = Story(), dice.sample(range(1, 9), 8)
    for worker in "xyz"[: dice.choice([2, 3])]:
        at = dice.random()
        while at < 1.5 and story._levels.get(worker, 0) >= 0:
            returned = at + dice.random()
            if story._levels.get(worker, 0) and dice.random() < 0.8:
                story.give(worker, at, returned=returned)
            elif dice.random() < 0.2:
                story.take(worker, at, returned=returned, outcome="refused", count=0)
            else:
                held = [one.token for one in story.operations if one.worker == worker and one.outcome == "ok"]
                nested = story._levels.get(worker, 0) > 0
                token = held[-1] if nested and dice.random() < 0.9 else tokens.pop() if tokens else 9
                until = dice.choice([FOREVER, returned + dice.random()])
                story.take(worker, at, token, returned=returned, until=until)
            at = returned + dice.random()
    return story.operations


def has_order(operations: list[Operation]) -> bool:
    """Return whether the model allows any order of the calls, by trying all of them."""
    ends = {number: hold.may_end for number, hold in holds_of(operations).items()}

    def go_on(left: frozenset[Operation], holder: Operation | None, levels: int, highest: int) -> bool:
        if not left:
            return True
        moment = min(one.returned for one in left)
        for one in left:
            rest = left - {one}
            mine = holder is not None and holder.worker == one.worker
            if one.called > moment:
                continue
            if one.outcome == "refused":
                fits = not (mine and one.level) and go_on(rest, holder, levels, highest)
            elif one.is_grant:
                free = holder is None or ends[holder.number] <= moment
                fits = free and one.token > highest and one.count == 1 and go_on(rest, one, 1, one.token)
            elif one.kind == "acquire":
                same = holder is not None and mine and one.token == holder.token and one.count == levels + 1
                fits = same and go_on(rest, holder, levels + 1, highest)
            else:
                fits = (
                    mine
                    and one.count == levels - 1
                    and go_on(rest, holder if levels > 1 else None, levels - 1, highest)
                )
            if fits:
                return True
        return False

    return go_on(frozenset(operations), None, 0, 0)


def test_the_search_agrees_with_trying_every_order(seed: int) -> None:
    dice = random.Random(seed)
    found = {True: 0, False: 0}
    for _ in range(1500):
        operations = some_calls(dice)
        expected = has_order(operations)
        found[expected] += 1
        assert (not check_model(operations)) == expected, "\n".join(map(str, operations))
    assert min(found.values()) > 50, found
