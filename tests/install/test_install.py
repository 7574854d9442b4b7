"""The archives of a release: what they have, and that it is found after each installation."""

import email
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CHECK = """
from importlib.metadata import entry_points
from importlib.util import find_spec
from relock._scripts import find_folder, load, script_names
import relock
names = script_names()
assert len(names) >= 9, names
for name in names:
    load(name)
(plugin,) = entry_points(group="pytest11", name="relock")
assert find_spec(plugin.module), plugin
print(relock.__file__)
print(find_folder())
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source archive, and the wheel from it; return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "-o", str(folder), str(ROOT)], check=True, capture_output=True)
    return folder


@pytest.mark.long  # tox itself installs from a source archive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_what_it_needs_is_found_in_an_installation_from(kind: str, archives: Path, tmp_path: Path) -> None:
    wanted = {
        "wheel": [str(next(archives.glob("*.whl")))],
        "sdist": [str(next(archives.glob("*.tar.gz")))],
        "editable": ["-e", str(ROOT)],
    }[kind]
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted]
    subprocess.run(install, check=True, cwd=tmp_path)
    shown = subprocess.run([python, "-c", CHECK], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    module, folder = shown.split()
    in_package = Path(module).parent / "_lua"
    assert Path(folder) == (ROOT / "lua" if kind == "editable" else in_package.resolve())


def test_the_archives_have_what_they_need_and_nothing_else(archives: Path) -> None:
    """One test, because each process that plays one of several would build the archives."""
    check_the_wheel(archives)
    check_the_source_archive(archives)
    check_the_links_of_the_page_on_the_package_index(archives)


def check_the_wheel(archives: Path) -> None:
    with zipfile.ZipFile(next(archives.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 3, "the package, the plugin for pytest, and metadata"
    assert "_relock_pytest.py" in names
    assert "relock/py.typed" in names
    assert "relock/_lua/acquire.lua" in names
    assert "relock/_lua/_lib/take.lua" in names
    assert "relock/cli/_bench/floor/take.lua" in names


def check_the_source_archive(archives: Path) -> None:
    """Check that it has the tests and the pages, and not the results of long runs."""
    with tarfile.open(next(archives.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "docs/results/benchmark.md", "docs/results/plots/rate.svg"} <= names
    assert [name for name in names if name.startswith("docs/results/") and name.endswith(".json")] == []
    assert "docs/operations/dashboard.json" in names


def check_the_links_of_the_page_on_the_package_index(archives: Path) -> None:
    with zipfile.ZipFile(next(archives.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    page = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert isinstance(page, str)
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert len(targets) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())) > 20
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.long
def test_the_archives_are_the_same_however_they_are_built(archives: Path, tmp_path: Path) -> None:
    """Build once more from the source archive: in another folder, at another time, with files that are private."""
    with tarfile.open(next(archives.glob("*.tar.gz"))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # CPython 3.11 has it from 3.11.4 on
        archive.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    for path in [source, *source.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1e9, 1e9))
    build = [sys.executable, "-m", "build", "-o", str(tmp_path / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True, umask=0o077)
    again = {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()}
    assert {path.name: path.read_bytes() for path in archives.iterdir()} == again


@pytest.mark.long
@pytest.mark.skipif(find_spec("twine") is None, reason="twine is not installed; tox -e package brings it")
def test_the_package_index_can_show_the_archives(archives: Path) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, archives.iterdir())]
    subprocess.run(check, check=True)


def test_the_core_imports_without_any_extra() -> None:
    blocked = "import sys\nfor m in ('click', 'rich', 'hiredis', 'lupa'): sys.modules[m] = None\nimport relock\n"
    subprocess.run([sys.executable, "-c", blocked], check=True)
