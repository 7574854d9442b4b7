"""The picture of the demo, where it is more than a layout."""

from relock.cli._demo.show import acts_line, acts_of

ACTS = acts_of(kills_masters=True, is_asyncio=True)


def test_the_acts_are_named_with_the_present_one_marked() -> None:
    line = acts_line(ACTS, 1, 200).plain
    assert line.startswith(" ✓ without a lock  ▶ with the lock  · masters are killed  ·")
    assert line.endswith("· a waiter is cancelled  · a waiter is killed")


def test_acts_that_are_over_lose_their_names_where_there_is_no_room() -> None:
    assert acts_line(ACTS, 4, 104).plain == " ✓  ✓  ✓  ✓  ▶ a waiter is cancelled  · a waiter is killed"


def test_the_acts_with_one_master_have_room() -> None:
    acts = acts_of(kills_masters=False, is_asyncio=True)
    assert all(name in acts_line(acts, 4, 104).plain for name in acts)


def test_only_what_can_happen_is_an_act() -> None:
    assert acts_of(kills_masters=False, is_asyncio=False) == (
        "without a lock",
        "with the lock",
        "a holder is killed",
        "a waiter is killed",
    )
