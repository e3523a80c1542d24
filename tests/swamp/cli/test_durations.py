import pytest

from swamp.cli.durations import parse_duration, show_age, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1w", 604800),
        ("1h30m", 5400),
        ("1m500ms", 60.5),
        (" 2H ", 7200),
    ],
)
def test_what_people_type(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "-5s", "1.5h", "5x", "1h 30m", "5 m", "1e3", "٣s", "²", "1h30"]
)
def test_what_is_no_duration_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 30s"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0", "0s", "0m", "0h0ms"])
def test_zero_only_where_it_means_something(text: str) -> None:
    assert parse_duration(text, zero=True) == 0
    with pytest.raises(ValueError, match="must be more than 0"):
        parse_duration(text)


def test_absurdly_long_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 100 years"):
        parse_duration("99999999999w")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (5.04, "5.0s"), (11.93, "11.9s"), (59.96, "1m 00s"), (123, "2m 03s"),
     (3723.4, "1h 02m 03s")],
)  # fmt: skip
def test_shown(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (59_999, "59s"), (60_000, "1m"), (7_200_000, "2h"), (200_000_000, "2d")],
)
def test_age(milliseconds: int, text: str) -> None:
    assert show_age(milliseconds) == text
