import random
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bench.estimates import growth, interpolate, percentile, percentile_interval

latencies = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=50)


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle():
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5


def test_every_percentile_of_one_value_is_that_value():
    assert percentile([7.0], 99) == 7.0


@given(latencies, st.floats(min_value=0, max_value=100))
def test_a_percentile_lies_between_the_least_and_the_greatest(values, percent):
    assert min(values) <= percentile(values, percent) <= max(values) * (1 + 1e-12)


def test_percentiles_are_those_of_the_standard_library():
    values = [random.Random(1).random() for _ in range(101)]

    expected = quantiles(values, n=100, method="inclusive")

    assert [percentile(values, percent) for percent in range(1, 100)] == pytest.approx(expected)


def test_an_interval_holds_its_estimate_and_narrows_with_more_values():
    draw = random.Random(2)
    few = [draw.expovariate(1) for _ in range(50)]
    many = [draw.expovariate(1) for _ in range(5_000)]

    of_few, of_many = percentile_interval(few, 50), percentile_interval(many, 50)

    assert of_few.low <= of_few.estimate <= of_few.high
    assert of_many.high - of_many.low < of_few.high - of_few.low


def test_the_interval_of_equal_values_is_a_point():
    interval = percentile_interval([3.0] * 20, 95)

    assert (interval.low, interval.estimate, interval.high) == (3.0, 3.0, 3.0)


def test_the_same_values_have_the_same_interval_every_time():
    values = [random.Random(3).random() for _ in range(100)]

    assert percentile_interval(values, 99) == percentile_interval(values, 99)


def test_what_quadruples_when_its_cause_doubles_grows_with_exponent_two():
    assert growth((8.0, 3.0), (16.0, 12.0)) == pytest.approx(2.0)


def test_what_does_not_depend_on_its_cause_grows_with_exponent_zero():
    assert growth((8.0, 3.0), (16.0, 3.0)) == 0.0


def test_between_two_measured_places_cost_is_linear():
    assert interpolate((1, 2, 4), [10.0, 20.0, 60.0], 3) == 40.0


def test_a_measured_place_costs_what_was_measured():
    assert interpolate((1, 2, 4), [10.0, 20.0, 60.0], 4) == 60.0


def test_no_rows_cost_nothing():
    assert interpolate((1, 2, 4), [10.0, 20.0, 60.0], 0) == 0.0
