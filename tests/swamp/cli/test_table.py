from swamp.cli.table import pairs, table


def test_columns_are_aligned_and_what_is_empty_is_a_dash() -> None:
    assert table(("A", "LONGER", "C"), [("1", "", "x  y\nz"), ("333", "22", "")]) == [
        "A    LONGER  C",
        "1    -       x y z",
        "333  22      -",
    ]


def test_a_very_long_cell_widens_its_own_line_alone() -> None:
    long = "x" * 5_000
    assert table(("A", "B"), [("1", "2"), (long, "3")]) == ["A  B", "1  2", f"{long}  3"]


def test_text_of_others_cannot_steer_the_terminal() -> None:
    assert table(("A",), [("a\x1b[2J\x1b]0;t\x07b\x9bc",)])[1] == "abc"


def test_labels_are_in_a_stable_order() -> None:
    assert pairs({"b": "2", "a": "1"}) == "a=1,b=2"
