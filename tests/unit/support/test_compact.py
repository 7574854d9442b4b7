"""Files of results: one line for each record."""

import json
from pathlib import Path

from support import compact

RESULTS = {
    "commit": "abc",
    "pairs": {"one": [1, 2.5]},
    "runs": [{"seed": 1, "faults": {"flush": 3}}, {"seed": 2}],
    "none": {},
}


def test_each_record_of_a_list_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    compact.write(path, RESULTS)
    lines = path.read_text().splitlines()
    assert '{"seed": 1, "faults": {"flush": 3}},' in lines
    assert '"one": [1, 2.5]' in lines
    assert json.loads(path.read_text()) == RESULTS
    assert [one.name for one in tmp_path.iterdir()] == [path.name], "no draft is left"
