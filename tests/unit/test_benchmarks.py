"""Figures: the median decides, pair by pair, and nothing measured is an error."""

import pytest

from benchmarks.figures import figure, ratios


@pytest.mark.parametrize(
    ("goal", "met"), [(None, None), (("at most", 2.0), True), (("at most", 1.9), False), (("at least", 2.0), True)]
)
def test_the_median_is_held_against_the_goal(goal, met):
    assert figure("up", "s", [1.0, 9.0, 2.0], goal).met is met


def test_a_figure_says_its_spread_and_how_often_it_was_measured():
    said = figure("up", "s", [3.0, 1.0, 2.0], ("at most", 2.5)).as_json()

    assert (said["min"], said["median"], said["max"], said["n"], said["goal"]) == (1.0, 2.0, 3.0, 3, "at most 2.5")


def test_ratios_are_of_pairs_that_were_measured_in_turn():
    assert ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


def test_pairs_must_be_complete():
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0], [])


def test_nothing_measured_is_no_figure():
    with pytest.raises(ValueError, match="nothing was measured"):
        figure("up", "s", [])
