"""docs/scale.md: its tables and pictures are those of the newest results (`python -m benchmarks.scale_page`)."""

from __future__ import annotations

import pytest
from benchmarks import scale_page
from benchmarks.scale import CURVES
from benchmarks.scale_page import PAGE, PICTURES, Curve

from fenceline.errors import OperatorError


def test_page_and_pictures_are_those_of_the_results() -> None:
    page, found = PAGE.read_text(), scale_page.curves()
    assert scale_page.rendered(page, found) == page
    for name in scale_page.named_curves(page):
        assert (PICTURES / scale_page.picture_name(name)).read_text() == scale_page.picture(name, found[name]), name


def test_page_has_every_curve() -> None:
    assert sorted(scale_page.named_curves(PAGE.read_text())) == sorted(CURVES)


def test_slope_is_the_exponent() -> None:
    sizes = (1_000, 2_000, 4_000, 8_000)
    assert Curve("t", "s", {size: 3.0 * size for size in sizes}).slope == pytest.approx(1)
    assert Curve("t", "s", {size: 0.1 * size**2 for size in sizes}).slope == pytest.approx(2)
    assert Curve("t", "s", dict.fromkeys(sizes, 7.0)).slope == pytest.approx(0)
    assert Curve("t", "s", dict.fromkeys(sizes, 0.0)).slope is None


@pytest.mark.parametrize(
    ("measure", "unit", "values", "is_within"),
    [
        ("opened", "s", {10: 1.0, 100: 10.0}, True),
        ("opened", "s", {10: 1.0, 100: 30.0}, False),
        ("memory of one", "bytes", {10: 500.0, 100: 505.0}, True),
        ("CPU of a join", "us", {10: 50.0, 100: 500.0}, False),
        ("longest pause of the loop", "ms", {10: 50.0, 100: 19.0}, True),
        ("longest pause of the loop", "ms", {10: 5.0, 100: 21.0}, False),
        ("longest pause of the loop, with waits for disk and cores", "ms", {10: 5.0, 100: 300.0}, True),
        ("idle: share of a core", "%", {10: 0.1, 100: 0.9}, True),
        ("idle: share of a core", "%", {10: 0.1, 100: 1.1}, False),
    ],
)
def test_limits(measure: str, unit: str, values: dict[int, float], is_within: bool) -> None:
    assert Curve(measure, unit, values).is_within is is_within


def test_a_curve_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(OperatorError, match="'waves' was not measured"):
        scale_page.rendered("<!-- curve: waves -->\n<!-- end -->", {})
