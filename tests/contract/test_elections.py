"""Elections: what is left over from one term of a leader does nothing in the next one, even in the same process."""

from collections.abc import Callable
from typing import Any

import pytest

from contract.rigs.rig import Rig
from relock import NotOwnedError, Term


class OverError(Exception):
    """Error with which a leader's function ends its campaign."""


def nothing(_term: Term) -> None:
    """Let the term end with its function."""


END: list[Callable[[Term], object]] = [nothing, lambda term: term.resign(), lambda term: term.ensure(1e6)]
WAYS = ["returns", "resigns", "asks for too much"]


@pytest.mark.parametrize("end", END, ids=WAYS)
def test_a_term_that_is_over_says_so_while_the_same_process_leads_again(
    rig: Rig, name: str, end: Callable[[Term], object]
) -> None:
    terms: list[Term] = []

    def lead(term: Term) -> None:
        terms.append(term)
        if len(terms) == 1:
            assert term.ensure() == term.token
            assert not term.lost.is_set()
            end(term)
            return
        old = terms[0]
        assert old.lost.is_set()
        assert old.remaining() == 0.0
        with pytest.raises(NotOwnedError):
            old.ensure()
        old.resign()
        assert term.ensure() == term.token > old.token
        assert not term.lost.is_set()
        raise OverError

    with pytest.raises(OverError):
        rig.client().elect(name, lead)
    assert terms[1].lost.is_set()
    rig.until_free(name, "the campaign")


@pytest.mark.parametrize("error", [None, OverError])
def test_a_term_is_told_that_it_is_over_before_another_process_leads(
    rig: Rig, name: str, error: type[Exception] | None
) -> None:
    client, other = rig.client(), rig.client()
    following: list[Any] = []
    terms: list[Term] = []

    def follow() -> bool:
        with other.lock(name):
            return terms[0].lost.is_set()

    def lead(term: Term) -> None:
        terms.append(term)
        if len(terms) == 1:
            following.append(rig.start(follow))
            rig.until(lambda: rig.is_queued(name), "the other one waits")
            if error is None:
                return
        raise OverError

    with pytest.raises(OverError):
        client.elect(name, lead)
    assert following[0].result()


def test_an_error_about_another_lock_ends_the_campaign(rig: Rig, name: str) -> None:
    """The campaign has told the function's threads that the term is over: the function itself was not told."""
    client, terms = rig.client(), list[Term]()

    def lead(term: Term) -> None:
        terms.append(term)
        if len(terms) > 1:
            raise OverError
        client.lock(f"{name} another").release()

    with pytest.raises(NotOwnedError, match="another"):
        client.elect(name, lead)
    rig.until_free(name, "the campaign")
