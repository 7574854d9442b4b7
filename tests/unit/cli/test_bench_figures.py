"""The figures of a benchmark's turns, with numbers that can be checked by hand."""

import json
import math
from collections.abc import Callable

import pytest

from relock.cli._bench.figures import Beside, Figures, Pairs, Turn, figures, in_turn, jain, middle, percentile

ALL = range(10**9)


def turns(*said: tuple[int, int, int]) -> list[Turn]:
    """Return turns from a worker's number, its acquire and its release in µs, with rising tokens."""
    return [Turn(worker, a * 1000, r * 1000, token) for token, (worker, a, r) in enumerate(said, 1)]


def test_a_handoff_is_from_the_release_of_one_worker_to_the_acquire_of_another() -> None:
    found = figures(turns((0, 10, 20), (1, 50, 60), (0, 160, 170)), 2, ALL)
    assert (found.handoffs, found.median_us, found.p99_us) == (2, 30.0, 100.0)


def test_turns_are_ordered_by_when_they_began_whoever_tells_them_first() -> None:
    told = turns((0, 10, 20), (1, 50, 60), (0, 160, 170))
    assert figures(reversed(told), 2, ALL) == figures(told, 2, ALL)


def test_a_turn_that_stays_with_its_worker_is_a_turn_and_no_handoff() -> None:
    found = figures(turns((0, 10, 20), (0, 21, 30), (1, 50, 60)), 2, ALL)
    assert (found.turns, found.handoffs, found.median_us) == (2, 1, 20.0)


def test_only_turns_within_the_window_count_and_the_one_before_it_is_where_the_first_comes_from() -> None:
    found = figures(turns((0, 10, 20), (1, 50, 60), (0, 70, 80), (1, 95, 99)), 2, range(40_000, 90_000))
    assert (found.turns, found.handoffs) == (2, 2)
    assert found.turns_per_second == pytest.approx(2 / 50e-6)
    assert found.median_us == 10.0


def test_two_at_once_are_seen() -> None:
    assert figures(turns((0, 10, 20), (1, 19, 30)), 2, ALL).overlaps == 1
    assert figures(turns((0, 10, 20), (1, 20, 30)), 2, ALL).overlaps == 0


def test_with_two_permits_the_first_release_lets_the_third_turn_in() -> None:
    """The turn that began first ends last."""
    found = figures(turns((0, 10, 90), (1, 20, 40), (2, 45, 70), (1, 75, 99)), 3, ALL, 2)
    assert (found.turns, found.handoffs, found.overlaps, found.out_of_order) == (2, 2, 0, 0)
    assert (found.median_us, found.p99_us) == (5.0, 5.0)
    assert found.in_use == pytest.approx((80 + 20 + 25 + 24) * 1e-6 / 2)
    assert figures(turns((0, 10, 90), (1, 20, 40), (2, 39, 70), (1, 75, 99)), 3, ALL, 2).overlaps == 1


def test_tokens_that_do_not_rise_are_seen_where_there_are_tokens() -> None:
    first, second = turns((0, 10, 20), (1, 30, 40))
    assert figures([first, second._replace(token=first.token)], 2, ALL).out_of_order == 1
    assert figures([first._replace(token=0), second._replace(token=0)], 2, ALL).out_of_order == 0


def test_figures_without_a_turn() -> None:
    found = figures([], 3, ALL)
    assert (found.turns, found.handoffs, found.turns_per_second) == (0, 0, 0.0)
    assert math.isnan(found.median_us)
    assert math.isnan(found.jain)


def test_a_worker_without_a_turn_counts_in_the_index() -> None:
    assert figures(turns((0, 1, 2), (0, 3, 4), (0, 5, 6)), 4, ALL).jain == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("counts", "index"), [([5, 5, 5], 1.0), ([1, 0, 0, 0], 0.25), ([1, 3], 0.8), ([7], 1.0)], ids=str
)
def test_jains_index(counts: list[int], index: float) -> None:
    assert jain(counts) == pytest.approx(index)


@pytest.mark.parametrize(("rank", "value"), [(0, 1), (50, 2), (51, 3), (75, 3), (99, 4), (100, 4)])
def test_a_percentile_is_one_of_the_values(rank: float, value: float) -> None:
    assert percentile([4, 2, 1, 3], rank) == value


def test_the_lock_is_in_use_from_an_acquire_to_the_call_of_its_release() -> None:
    assert figures(turns((0, 0, 100), (1, 500, 900)), 2, range(1_000_000)).in_use == pytest.approx(0.5)


def test_only_what_is_within_the_window_counts_as_in_use() -> None:
    found = figures(turns((0, 0, 300), (1, 350, 400), (0, 900, 1500)), 2, range(200_000, 1_000_000))
    assert found.in_use == pytest.approx((100 + 50 + 100) / 800)


# Several rounds, and the floor ----------------------------------------------------------------------------------------


def pairs(median_us: float, count: int = 10) -> Pairs:
    return Pairs(pairs=count, median_us=median_us, p99_us=2 * median_us, pairs_per_second=1e6 / median_us)


def test_of_several_rounds_the_median_counts_and_counts_are_added_up() -> None:
    assert middle([pairs(30.0), pairs(10.0), pairs(20.0)]) == pairs(20.0, 30)


def test_a_round_without_a_hand_off_has_no_say_in_how_long_one_takes() -> None:
    none, some = figures([], 2, ALL), figures(turns((0, 10, 20), (1, 50, 60)), 2, ALL)
    assert middle([some, none]).median_us == middle([none, some]).median_us == some.median_us
    assert middle([none, some, none]).handoffs_per_second == 0.0
    assert math.isnan(middle([none, none]).jain)


def test_everybody_is_measured_in_turn_round_after_round() -> None:
    order: list[str] = []

    def measured(name: str, *medians: float) -> Callable[[], Pairs]:
        found = iter(medians)

        def measure() -> Pairs:
            order.append(name)
            return pairs(next(found))

        return measure

    found = in_turn({"floor": measured("floor", 1, 2, 9), "ours": measured("ours", 5, 6, 7)}, rounds=3)
    assert order == ["floor", "ours"] * 3
    assert (found["floor"].median_us, found["ours"].median_us) == (2, 6)


def test_a_ratio_is_relocks_figure_over_the_floors() -> None:
    both = Beside(pairs(30.0), pairs(20.0))
    assert both.ratio("median_us") == 1.5
    said = both.as_json("median_us")
    assert (said["median_us"], said["floor"]["median_us"], said["of_floor"]) == (30.0, 20.0, {"median_us": 1.5})


def test_without_a_floor_there_is_no_ratio() -> None:
    alone: Beside[Pairs] = Beside(pairs(30.0), None)
    assert math.isnan(alone.ratio("median_us"))
    said = alone.as_json("median_us")
    assert (said["median_us"], said["floor"], said["of_floor"]) == (30.0, None, None)


def test_a_floor_that_has_no_such_figure_makes_no_ratio_and_json_has_no_nan() -> None:
    none: Figures = figures([], 2, ALL)
    said = Beside(figures(turns((0, 10, 20), (1, 50, 60)), 2, ALL), none).as_json("median_us", "handoffs_per_second")
    assert said["of_floor"] == {"median_us": None, "handoffs_per_second": None}
    assert said["floor"]["median_us"] is None
    json.dumps(said, allow_nan=False)
