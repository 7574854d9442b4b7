"""``relock order``: graphs of several runs, merged."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from relock.cli._main import cli
from relock.testing import OrderEdge
from relock.testing._order_graph import write_graph


def write(path: Path, *pairs: str) -> str:
    """Write a graph with an edge for each pair, such as ``"a b"``; return the file's name."""
    edges = (OrderEdge._make((*pair.split(), *pair.split(), "a task", ("a.py:1 in f",), ())) for pair in pairs)
    write_graph({(edge.held, edge.wanted): edge for edge in edges}, path)
    return str(path)


def merge(*words: str) -> Result:
    return CliRunner().invoke(cli, ["order", "merge", *words])


def test_a_merged_graph_without_a_cycle_is_printed(tmp_path: Path) -> None:
    done = merge(write(tmp_path / "one", "b c"), write(tmp_path / "two", "a b", "b c"))
    assert (done.exit_code, done.stdout) == (0, "a -> b\nb -> c\n")


def test_a_cycle_over_two_files_exits_with_1_and_is_printed_with_its_places(tmp_path: Path) -> None:
    done = merge(write(tmp_path / "one", "a b"), write(tmp_path / "two", "b a", "b \x1b[2J"))
    assert done.exit_code == 1
    graph, _, cycle = done.stdout.partition("\n\n")
    assert graph.splitlines() == ["a -> b", "b -> \\x1b[2J", "b -> a"]
    assert cycle.splitlines()[:3] == [
        "Locks are taken in two orders: a -> b -> a",
        "  a task had 'a', taken at",
        "    a.py:1 in f",
    ]


def test_a_cycle_as_json(tmp_path: Path) -> None:
    done = merge(write(tmp_path / "one", "a b", "b a", "c c"), "--json")
    printed = json.loads(done.stdout)
    assert done.exit_code == 1
    assert printed["cycles"] == [[["a", "b"], ["b", "a"]], [["c", "c"]]]
    assert [(edge["held"], edge["wanted"]) for edge in printed["edges"]] == [("a", "b"), ("b", "a"), ("c", "c")]


def test_a_file_that_can_not_be_read_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    for file in ("missing", "other", "."):
        done = merge(write(tmp_path / "one", "a b"), str(tmp_path / file))
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"relock: {tmp_path / file}: ")
        assert len(done.stderr.splitlines()) == 1
    assert merge().exit_code == 2
