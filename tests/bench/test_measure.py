"""The benchmark's own arithmetic."""

from tests.bench.load import summary
from tests.bench.measure import Row, alternate
from tests.bench.server import large_review
from tests.bench.soak import slope


def test_a_row_knows_whether_its_bar_is_reached_and_how_far_it_is_off() -> None:
    most, least = Row("a", 12.0, "ms", 10), Row("b", 0.7, "x", 0.8, at_least=True)
    assert (most.reached, most.within(1.3), most.within(1.1)) == (False, True, False)
    assert (least.reached, least.within(1.2), least.within(1.1)) == (False, True, False)
    assert Row("c", 10.0, "ms", 10).reached
    assert Row("d", 0.8, "x", 0.8, at_least=True).reached


def test_measures_take_turns_and_their_medians_count() -> None:
    turns: list[str] = []
    values = {"a": iter((1.0, 9.0, 2.0)), "b": iter((5.0, 4.0, 6.0))}

    def measure(name: str) -> float:
        turns.append(name)
        return next(values[name])

    assert alternate(3, lambda: measure("a"), lambda: measure("b")) == [2.0, 5.0]
    assert turns == ["a", "b"] * 3


def test_a_summary_is_in_milliseconds_and_answers_a_second() -> None:
    found = summary([number / 1000 for number in range(1, 101)], seconds=2.0)
    assert found == {"count": 100, "per_second": 50.0, "p50_ms": 51, "p90_ms": 91, "p99_ms": 100, "max_ms": 100}


def test_the_large_review_is_large() -> None:
    assert 5 << 19 < len(large_review()) < 3 << 20


def test_the_slope_of_memory_is_that_of_a_line_through_it() -> None:
    assert slope([(0.0, 100.0), (60.0, 101.0), (120.0, 102.0)]) == 1.0
    assert slope([(0.0, 100.0), (60.0, 130.0), (120.0, 100.0)]) == 0.0
