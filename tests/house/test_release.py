"""A release: what blocks it is found, and the workflow that publishes has no right, secret or action too many."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.release import PLACEHOLDER, ROOT, WITH_ADDRESSES, blocking

READ = ("pyproject.toml", "SECURITY.md", "README.md", "CHANGELOG.md", "src/relock/__init__.py")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PUBLISH = (ROOT / ".github" / "workflows" / "publish.yml").read_text()


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a folder with the files of a release that nothing blocks."""
    for name in READ:
        text = re.sub(r"not\s+released\s+yet", "2026-01-31", (ROOT / name).read_text())
        text = re.sub(r"^(## \[[\d.]+\] - ).*", r"\g<1>2026-01-31", text, count=1, flags=re.MULTILINE)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(PLACEHOLDER, "repository.example"))
    return tmp_path


def test_nothing_blocks_a_release_that_has_all(ready: Path) -> None:
    assert list(blocking(f"v{VERSION}", ready)) == []


def test_a_tag_of_another_version_blocks(ready: Path) -> None:
    assert len(list(blocking("v99.0.0", ready))) == 1


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("src/relock/__init__.py", lambda text: text.replace(f'"{VERSION}"', '"99.0.0"')),
        ("CHANGELOG.md", lambda text: text.replace(" - 2026-01-31", "")),
        ("README.md", lambda text: text + "\nIt is not released\nyet.\n"),
        *((name, lambda text: text + f"\n# https://{PLACEHOLDER}/relock\n") for name in WITH_ADDRESSES),
    ],
)
def test_each_thing_that_a_release_lacks_blocks(ready: Path, name: str, spoil: Callable[[str], str]) -> None:
    path = ready / name
    path.write_text(spoil(path.read_text()))
    (found,) = blocking(f"v{VERSION}", ready)
    assert name in found


def test_the_placeholder_is_in_no_other_file() -> None:
    files = [*ROOT.glob("*"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    with_it = {path.name for path in files if path.is_file() and PLACEHOLDER in path.read_text(errors="replace")}
    assert with_it <= {*WITH_ADDRESSES, "CONTRIBUTING.md"}


def test_there_is_one_address_of_the_repository() -> None:
    base = PROJECT["project"]["urls"]["Repository"]
    links = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    addresses = [*PROJECT["project"]["urls"].values(), *(link["replacement"][2:] for link in links)]
    assert [address for address in addresses if not f"{address}/".startswith(f"{base}/")] == []
    assert f"<{base}/security/advisories/new>" in (ROOT / "SECURITY.md").read_text()


def test_each_link_of_the_readme_becomes_one_that_a_package_index_knows() -> None:
    page = (ROOT / "README.md").read_text()
    for link in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        page = re.sub(link["pattern"], link["replacement"], page)
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    assert [target for target in targets if target.endswith(".svg") and "/raw/" not in target] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_its_actions_and_has_no_secret(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    assert "secrets." not in text


def test_only_the_job_that_publishes_may_write_and_it_runs_no_code_of_ours() -> None:
    before, publish = PUBLISH.split("\n  publish:\n")
    assert "\npermissions: {}\n" in before
    assert re.findall(r"[\w-]+: write", before) == []
    assert re.findall(r"[\w-]+: write", publish) == ["id-token: write"]
    assert "needs: [build, test]" in publish
    assert "run:" not in publish
    assert "checkout" not in publish


def test_the_workflow_looks_for_what_blocks_before_it_builds() -> None:
    assert 0 < PUBLISH.index("support.release") < PUBLISH.index("-m build")


def test_all_archives_are_built_by_the_declared_backend_with_pinned_tools() -> None:
    pinned = (ROOT / ".github" / "build-requirements.txt").read_text()
    lines = [line for line in pinned.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line)] == []
    for needed in PROJECT["build-system"]["requires"]:
        assert f"\n{needed.partition('>=')[0]}==" in pinned
