"""The plots can be read on a white page, and on the dark one of the theme."""

import re
from pathlib import Path

import pytest

PLOTS = sorted((Path(__file__).resolve().parents[2] / "docs" / "results" / "plots").glob("*.svg"))
PAGES = ("#ffffff", "#131416")
LEAST = 3.0  # the contrast that WCAG 2 asks of lines in a picture, and of its labels' size
COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrasts_of_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.stem)
def test_every_colour_stands_out_on_both_pages(plot: Path) -> None:
    svg = re.sub(r"stroke: #b0b0b0; stroke-opacity: 0\.3", "", plot.read_text())  # the grid
    colours = {*COLOUR.findall(svg)}
    assert len(colours) > 2
    assert [(one, page) for one in sorted(colours) for page in PAGES if contrast(one, page) < LEAST] == []
    assert all("fill: #" in text for text in re.findall(r"<text[^>]*>", svg)), "black by default"
