"""The picture of the demo's output: lines in their order, none too long."""

import re
from xml.etree import ElementTree

from support.recording import COLUMNS, recording, sentences

OUTPUT = f"relock demo\n  3.0 s  1. an act\n  6.0 s     an event & <more>\nok   {'good ' * 40}\nverdict: good: all\n"


def test_the_lines_appear_in_their_order_and_fit() -> None:
    svg = ElementTree.fromstring(recording(OUTPUT))
    lines = list(svg.iter("{http://www.w3.org/2000/svg}text"))
    delays = [float(re.findall(r"delay: ([\d.]+)s", line.attrib["style"])[0]) for line in lines]
    assert delays == sorted(delays)
    assert (delays[2], delays[3]) == (1.0, 2.0), "three times as fast as the demo"
    assert all(len(line.text or "") <= COLUMNS for line in lines)
    assert sentences(" ".join(line.text or "" for line in lines[1:])) == sentences(OUTPUT)


def test_what_differs_from_run_to_run_does_not_count() -> None:
    assert sentences("alder.2 had it 1,495.5 ms  after") == sentences("maple.1 had it 3.0 ms after")
    assert sentences("alder has it") != sentences("alder had it")
