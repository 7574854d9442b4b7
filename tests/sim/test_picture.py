"""The picture of a run: all that happened is in it, and it changes nothing in the run."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from relock.testing._network import VirtualConnection
from relock.testing._server import Peer, Server
from sim.__main__ import main
from sim.bugs import BUGS
from sim.hunt import REPOSITORY, hunt, plant
from sim.leftovers import LOCK_KEY
from sim.picture import LANE, LEGEND, STYLE, Bar, Mark, Message, Scale, Story, draw
from sim.simulation import Simulation
from sim.watch import watched

SVG = "{http://www.w3.org/2000/svg}"
# Seeds, to be replaced by others if these no longer draw that.
FAULTS = 17  # a crash, isolated clients, a clock that stands still, and few messages
DROPS = 25  # lost messages of each kind
OTHERS = (9, 16, 22, 27)  # several locks, permits, readers and writers, masters that move


def count(svg: ElementTree.Element, kind: str) -> int:
    """Return how many groups of a kind a picture has."""
    return sum(group.get("class", "").startswith(kind) for group in svg.iter(f"{SVG}g"))


def texts(svg: ElementTree.Element) -> set[str]:
    """Return the texts of a picture, without hover texts."""
    return {text.text or "" for text in svg.iter(f"{SVG}text")}


def test_all_of_a_run_is_in_its_picture() -> None:
    simulation, story = watched(FAULTS)
    simulation.run()
    svg = ElementTree.fromstring(draw(story))
    processes = [process.name for process in simulation.cast.processes]
    masters = [server.name for server in simulation.servers]
    assert (story.processes, story.masters) == (processes, masters)
    assert {*processes, *masters} <= texts(svg)
    assert count(svg, "hold") == simulation.grants > 0
    assert count(svg, "kept") >= 2 * simulation.grants  # a quorum of three masters keeps each
    faults = sum(simulation.faults.values()) - simulation.faults["repeat"]
    assert count(svg, "fault") >= faults > 0
    assert count(svg, "request") + count(svg, "reply") + count(svg, "published") == len(story.messages)
    assert count(svg, "violation") == 0
    assert "crash 1.5" in texts(svg)
    states = {bar.label for bar in story.bars if bar.kind == "state"}
    assert states == {"down", "stands still", "apart from client-0", "apart from client-1"}
    holds = [bar for bar in story.bars if bar.kind == "hold"]
    assert all(bar.begin <= bar.end < simulation.world.now for bar in holds)


@pytest.mark.parametrize("seed", [FAULTS, *OTHERS])
def test_a_run_that_is_watched_is_the_same_run(seed: int) -> None:
    plain, (simulation, story) = Simulation(seed).run(), watched(seed)
    watched_run = simulation.run()
    assert watched_run.world.timeline() == plain.world.timeline()
    assert watched_run.world.random.getstate() == plain.world.random.getstate()
    svg = ElementTree.fromstring(draw(story))
    lanes = [*story.processes, *story.masters]
    assert len({*lanes}) == len(lanes) < float(svg.get("width", "0")) / LANE
    assert {float(line.get("x1", "0")) < float(svg.get("width", "0")) for line in svg.iter(f"{SVG}line")} == {True}


def test_a_look_at_a_master_removes_no_key_that_has_expired() -> None:
    """A clock that is set back may make such a key last longer."""
    simulation, story = watched(FAULTS)
    server = simulation.servers[0]
    server.master.read("HSET", LOCK_KEY, b"client-0:1", 1)
    server.master.read("PEXPIRE", LOCK_KEY, 1000)
    simulation.world.run(0.0)
    server.step(5.0)
    simulation.world.run(0.0)
    server.step(-5.0)
    assert [(bar.lane, bar.kind) for bar in story.bars] == [(server.name, "kept")]
    assert server.master.contents(LOCK_KEY) == {b"client-0:1": b"1"}


def test_a_message_is_drawn_as_lost_if_it_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []
    receive, come_back = Server.receive, VirtualConnection._come_back

    def count_request(server: Server, raw: Peer, commands: Sequence[Sequence[bytes]]) -> None:
        received.append(1)
        receive(server, raw, commands)

    def count_reply(raw: VirtualConnection, replies: Sequence[object]) -> None:
        before = len(raw._inbox)
        come_back(raw, replies)
        received.append(len(raw._inbox) > before)

    monkeypatch.setattr(Server, "receive", count_request)
    monkeypatch.setattr(VirtualConnection, "_come_back", count_reply)
    simulation, story = watched(DROPS)
    simulation.run()
    lost = {message.kind for message in story.messages if message.is_lost}
    assert lost == {"request", "reply", "published"}
    assert sum(not message.is_lost for message in story.messages) == sum(received)


def test_the_command_prints_the_same_with_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    plain = CliRunner().invoke(main, ["--seeds", str(FAULTS)])
    drawn = CliRunner().invoke(main, ["--seeds", str(FAULTS), "--picture", str(picture)])
    assert (drawn.output, drawn.exit_code) == (plain.output, plain.exit_code) == (plain.output, 0)
    ElementTree.parse(picture)


def test_the_picture_of_a_planted_bug_shows_its_violation(tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.what == "a quorum is one too few")
    plant(bug, tmp_path)
    picture = tmp_path / "picture.svg"
    done = hunt(tmp_path, str(bug.seed), "--picture", str(picture))
    assert done.returncode == 1
    violation = done.stdout.partition("\n")[0].partition(": ")[2]
    svg = ElementTree.parse(picture).getroot()
    assert f"VIOLATION: {violation}" in texts(svg)
    assert count(svg, "violation") >= 1
    assert count(svg, "hold") >= 2  # two owners believe at once
    assert 0 < count(svg, "request") + count(svg, "reply") < 100  # those around the violation, not all


def test_the_picture_of_the_page_is_of_that_bug_and_in_the_present_style() -> None:
    bug = next(bug for bug in BUGS if bug.what == "a quorum is one too few")
    text = (REPOSITORY / "docs" / "_static" / "simulated-run.svg").read_text(encoding="utf-8")
    svg = ElementTree.fromstring(text)
    assert STYLE in text
    assert {f"seed {bug.seed}", *LEGEND, "VIOLATION: two holders: client-1 and client-2"} <= texts(svg)
    assert count(svg, "hold") == 2
    assert f"seed {bug.seed} with a planted bug" in (REPOSITORY / "docs/internals/simulator.md").read_text()


def test_only_what_is_asked_for_is_drawn(tmp_path: Path) -> None:
    pictures = [tmp_path / f"{number}.svg" for number in range(2)]
    for picture in pictures:
        done = CliRunner().invoke(
            main, ["--seeds", str(FAULTS), "--picture", str(picture), "--from", "2.0", "--until", "2.5"]
        )
        assert done.exit_code == 0
    first, second = (picture.read_text() for picture in pictures)
    assert first == second
    simulation, story = watched(FAULTS)
    simulation.run()
    within = [message for message in story.messages if message.sent <= 2.5 and message.arrives >= 2.0]
    svg = ElementTree.fromstring(first)
    assert count(svg, "request") + count(svg, "reply") + count(svg, "published") == len(within) > 0


@pytest.mark.parametrize(
    "arguments", [["--seeds", "0-9", "--picture", "p.svg"], ["--seeds", "0", "--from", "1.0"]], ids=["many", "none"]
)
def test_a_picture_is_of_one_run(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_a_message_that_is_lost_ends_with_a_cross() -> None:
    story = Story("a", ["client-0"], ["master-0"])
    story.messages = [
        Message("client-0", "master-0", "client-0", "request", 0.0, 0.1, "acquire", "", is_lost=is_lost)
        for is_lost in (False, True)
    ]
    svg = ElementTree.fromstring(draw(story))
    crosses = [path for path in svg.iter(f"{SVG}path") if path.get("class") == "violation"]
    assert (len(crosses), len([*svg.iter(f"{SVG}circle")])) == (1, 1)


def test_holds_of_one_owner_at_once_are_beside_each_other_and_text_is_escaped() -> None:
    story = Story("a < b", ["client-0"], [])
    for begin in (0.0, 0.1):
        story.bars.append(Bar("client-0", "hold", "client-0", begin, "<&", "<&", end=1.0))
    story.marks = [Mark("client-0", "fault", when, "<&") for when in (0.0, 1.0)]
    svg = ElementTree.fromstring(draw(story))
    rects = [
        rect.get("x")
        for group in svg.iter(f"{SVG}g")
        if "hold" in group.get("class", "")
        for rect in group.iter(f"{SVG}rect")
    ]
    assert len({*rects}) == 2
    assert {"a < b", "<&"} <= texts(svg)


def test_time_goes_on_in_each_part_of_the_scale_and_long_gaps_are_folded() -> None:
    scale = Scale([0.0, 0.001, 0.002, 0.003, 5.0, 5.001])
    places = [scale(time) for time in (-1.0, 0.0, 0.0005, 0.001, 0.003, 2.5, 5.0, 5.001, 9.0)]
    assert places == sorted(places)
    assert places[2] - places[1] == pytest.approx(places[3] - places[2])
    assert [round(seconds, 3) for _, seconds in scale.folds] == [4.997]
