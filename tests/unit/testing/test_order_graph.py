"""The graph of the orders in which locks are taken: classes, cycles, and its file."""

from pathlib import Path
from uuid import UUID

import pytest

from relock.testing import OrderEdge
from relock.testing._order_graph import OrderGraph, class_of, describe, find_cycles, merge, read_graph, write_graph


def graph_of(*pairs: str, caller: str = "the thread 'one'") -> OrderGraph:
    """Return a graph with an edge for each pair, such as ``"a b"``."""
    edges = [(*pair.split(), *pair.split(), caller, ("a.py:1 in f",), ("a.py:2 in f",)) for pair in pairs]
    return {(edge.held, edge.wanted): edge for edge in map(OrderEdge._make, edges)}


def cycles_of(*pairs: str) -> list[list[str]]:
    return [[edge.held for edge in cycle] for cycle in find_cycles(graph_of(*pairs))]


UUID_TEXT = "0b7d6fd0-58b4-4b3a-9c0e-deadbeefcafe"


@pytest.mark.parametrize(
    ("name", "its_class"),
    [
        ("report", "report"),
        ("orders:42", "orders:#"),
        ("orders:42:lines:7", "orders:#:lines:#"),
        ("v2-orders", "v#-orders"),
        (f"user:{UUID_TEXT}", "user:#"),
        (f"user:{UUID_TEXT.upper()}:mail", "user:#:mail"),
        (f"user:{UUID(UUID_TEXT).hex}", "user:#"),
        ("", ""),
    ],
)
def test_numbers_and_uuids_are_cut(name: str, its_class: str) -> None:
    assert class_of(name) == its_class


def test_a_long_word_with_a_uuid_in_it_is_no_uuid() -> None:
    assert class_of("face" * 9) == "face" * 9


@pytest.mark.parametrize(
    ("pairs", "cycles"),
    [
        ([], []),
        (["a b", "b c", "a c"], []),
        (["a b", "b a"], [["a", "b"]]),
        (["a a"], [["a"]]),
        (["a b", "b c", "c a"], [["a", "b", "c"]]),
        (["a b", "b c", "c d", "d a", "b a", "x a", "d y"], [["a", "b"], ["b", "c", "d", "a"]]),
        (["a b", "b a", "c d", "d c"], [["a", "b"], ["c", "d"]]),
    ],
    ids=str,
)
def test_cycles_are_found(pairs: list[str], cycles: list[list[str]]) -> None:
    assert cycles_of(*pairs) == cycles


def test_a_cycle_may_lie_in_two_graphs_of_which_neither_has_one() -> None:
    first, second = graph_of("a b"), graph_of("b c", "c a")
    assert not find_cycles(first)
    assert not find_cycles(second)
    assert len(find_cycles(merge([first, second]))) == 1


def test_the_first_graph_that_has_an_edge_tells_of_it() -> None:
    merged = merge([graph_of("a b", caller="first"), graph_of("a b", "b c", caller="second")])
    assert [edge.caller for edge in merged.values()] == ["first", "second"]


def test_a_cycle_is_told_with_names_callers_and_stacks() -> None:
    edges = [
        OrderEdge(
            "orders:#", "stock:#", "orders:42", "stock:7", "the thread 'one'", ("a.py:1 in f",), ("a.py:2 in f",)
        ),
        OrderEdge("stock:#", "orders:#", "stock:8", "orders:9", "the task 'two'", (), ("b.py:3 in g",)),
    ]
    text = describe(find_cycles({(edge.held, edge.wanted): edge for edge in edges}))
    assert text.splitlines() == [
        "Locks are taken in two orders: orders:# -> stock:# -> orders:#",
        "  the thread 'one' had 'orders:42', taken at",
        "    a.py:1 in f",
        "  and asked for 'stock:7' at",
        "    a.py:2 in f",
        "  the task 'two' had 'stock:8', taken at",
        "    a place that was not watched",
        "  and asked for 'orders:9' at",
        "    b.py:3 in g",
        "Take these locks together by lock_all, or take them in one order everywhere.",
    ]
    assert describe(find_cycles(graph_of("a a"))).startswith("Two locks of one class are nested: a -> a\n")


def test_a_graph_is_read_as_it_was_written(tmp_path: Path) -> None:
    graph = graph_of("a b", "b \u00e4")
    write_graph(graph, tmp_path / "graph.json")
    assert read_graph(tmp_path / "graph.json") == graph


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "7", '{"edges": 7}', '{"edges": [7]}', '{"edges": [{"held": "a"}]}', "\xff"]
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "graph.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"graph of the orders|Expecting value|invalid start byte"):
        read_graph(tmp_path / "graph.json")
