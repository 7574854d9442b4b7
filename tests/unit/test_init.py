"""Names of the package."""

import pytest

import relock


def test_the_package_lists_all_of_its_names_and_no_others_are_found() -> None:
    assert set(relock.__all__) <= set(dir(relock))
    assert [name for name in relock.__all__ if not hasattr(relock, name)] == []
    with pytest.raises(AttributeError, match="'relock' has no attribute 'Lok'"):
        _ = relock.Lok  # type: ignore[attr-defined]
