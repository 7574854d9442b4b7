"""relock's figures beside those of the bare floor, measured in turn: disturbances strike both."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from attrs import AttrsInstance, asdict, frozen

from relock.cli._bench.figures import middle

T = TypeVar("T", bound=AttrsInstance)


@frozen
class Beside(Generic[T]):
    """Figures of relock and of the floor from the same rounds."""

    relock: T
    floor: T | None

    def ratio(self, figure: str) -> float:
        """Return relock's figure as a multiple of the floor's; NaN where one of them has none."""
        if self.floor is None:
            return math.nan
        return _divided(getattr(self.relock, figure), getattr(self.floor, figure))

    def as_json(self, *figures: str) -> dict[str, Any]:
        """Return the figures of relock, with the floor's, and the ratios of `figures`."""
        floor = None if self.floor is None else _without_nan(asdict(self.floor))
        ratios = None if floor is None else _without_nan({figure: self.ratio(figure) for figure in figures})
        own: dict[str, Any] = _without_nan(asdict(self.relock))
        return {**own, "floor": floor, "of_floor": ratios}


def in_turn(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, T]:
    """Measure everybody once in each of the rounds; return the figures of each, put together by `middle`."""
    played = [{name: measure() for name, measure in ways.items()} for _ in range(rounds)]
    return {name: middle([found[name] for found in played]) for name in ways}


def _divided(one: float, other: float) -> float:
    return one / other if other else math.nan


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same, with None for what is no number: JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
