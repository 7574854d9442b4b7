"""Objects that are alive, while some die and others come."""

from relock._runtime.live_set import LiveSet


class One:
    """Object to which references can be counted."""


def test_it_keeps_nothing_alive() -> None:
    live, one, another = LiveSet[One](), One(), One()
    live.add(one)
    live.add(one)
    live.add(another)
    assert (len(live), set(live)) == (2, {one, another})
    del another
    assert (len(live), list(live)) == (1, [one])
    live.discard(one)
    live.discard(one)
    assert not list(live)


def test_a_look_at_all_misses_none_while_others_come_and_go() -> None:
    """One object dies, and another one comes, at each step: the set has as many as before."""
    live, kept, dying = LiveSet[One](), [One() for _ in range(50)], [One() for _ in range(50)]
    for one in [*kept, *dying]:
        live.add(one)
    seen, came = set(), []
    for one in live:
        seen.add(one)
        if dying:
            dying.pop()
        came.append(One())
        live.add(came[-1])
    assert set(kept) <= seen


def test_objects_come_in_the_order_in_which_they_were_added() -> None:
    live, added = LiveSet[One](), [One() for _ in range(50)]
    added.sort(key=id, reverse=True)  # not in that of their addresses
    for one in added:
        live.add(one)
    live.add(added[0])  # an object that is in the set keeps its place
    live.discard(added.pop(20))
    assert list(live) == added
