import pytest

from swamp.cli.colors import paint


@pytest.mark.parametrize(
    ("line", "painted"),
    [
        (" job │ done s in 1.0s", "\x1b[2m job │\x1b[0m \x1b[32mdone s in 1.0s\x1b[0m"),
        (" job │ failed s in 1.0s", "\x1b[2m job │\x1b[0m \x1b[31mfailed s in 1.0s\x1b[0m"),
        (" job │ s ▏ done │ x", "\x1b[2m job │\x1b[0m s ▏ done │ x"),
        ("", ""),
    ],
)
def test_labels_are_dimmed_and_ends_colored(line: str, painted: str) -> None:
    assert paint(line) == painted
