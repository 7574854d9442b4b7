"""Objects that are alive, while some die and others come."""

from relock._runtime.masters.living import Living


class One:
    """Object that may be referred to."""


def test_it_keeps_nothing_alive() -> None:
    living, one, another = Living[One](), One(), One()
    living.add(one)
    living.add(one)
    living.add(another)
    assert (len(living), set(living)) == (2, {one, another})
    del another
    assert (len(living), list(living)) == (1, [one])
    living.discard(one)
    living.discard(one)
    assert not list(living)


def test_a_look_at_all_misses_none_while_others_come_and_go() -> None:
    """One dies, and another one comes, at each step: the set has as many as before."""
    living, kept, dying = Living[One](), [One() for _ in range(50)], [One() for _ in range(50)]
    for one in [*kept, *dying]:
        living.add(one)
    seen, came = set(), []
    for one in living:
        seen.add(one)
        if dying:
            dying.pop()
        came.append(One())
        living.add(came[-1])
    assert set(kept) <= seen
