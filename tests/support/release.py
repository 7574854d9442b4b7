"""Check of a release, for things that it still lacks: ``python -m support.release v0.1.0``, in ``tests``.

The workflow that publishes runs this first, with the name of the tag.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# It stands for the address of the repository. The name `invalid` is reserved: no address ends with it.
PLACEHOLDER = "repository.invalid"
WITH_ADDRESSES = ("pyproject.toml", "SECURITY.md", "README.md", "CHANGELOG.md")
NOT_YET = "not released yet"


def blocking(tag: str, root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each thing that the files at `root` lack for a release with this tag."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        yield f"the tag is {tag}, and the version in pyproject.toml is {version}"
    if f'__version__ = "{version}"' not in (root / "src" / "relock" / "__init__.py").read_text():
        yield f"__version__ in src/relock/__init__.py is not {version}"
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE) is None:
        yield f"CHANGELOG.md has no heading with the day of {version}: ## [{version}] - YYYY-MM-DD"
    for name in WITH_ADDRESSES:
        text = " ".join((root / name).read_text().split())
        if PLACEHOLDER in text:
            yield f"{name} has the placeholder {PLACEHOLDER} in place of the address of the repository"
        if NOT_YET in text:
            yield f"{name} says '{NOT_YET}'"


if __name__ == "__main__":
    found = list(blocking(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(bool(found))
