"""Words of `relock run`: some are relock's, and the others are the command's."""

import pytest

from relock.cli.run import run

NODE = ("--node", "redis://localhost")


@pytest.mark.parametrize("line", ["n -- c --wait 5", "n c --wait 5", "-- n c --wait 5", "--no-wait n c --wait 5"])
def test_what_follows_the_command_is_the_commands(line: str) -> None:
    params = run.make_context("run", [*NODE, *line.split()]).params
    assert (params["name"], params["command"], params["wait_seconds"]) == ("n", ("c", "--wait", "5"), None)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("n --wait 7 -- c -x", ("c", "-x")),
        ("n --wait 7 c -x --json", ("c", "-x", "--json")),
        ("--wait 7 n c --help", ("c", "--help")),
        ("--wait=7 n --ttl 5 c --ttl 9 -- d", ("c", "--ttl", "9", "--", "d")),
        ("--prefix p n --wait 7 -", ("-",)),
        ("n --wait 7 -- --no-wait", ("--no-wait",)),
        ("n --wait 7 git log -- file", ("git", "log", "--", "file")),
    ],
)
def test_options_before_the_command_are_relocks(line: str, command: tuple[str, ...]) -> None:
    params = run.make_context("run", [*NODE, *line.split()]).params
    assert (params["name"], params["command"], params["wait_seconds"]) == ("n", command, 7.0)
    assert not params["as_json"]
    assert not params["no_wait"]
