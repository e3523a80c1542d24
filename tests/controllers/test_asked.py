from __future__ import annotations

import pytest

from controllers.asked import MISSING, Asked, asked, desired_file
from datastore.desired import UNREADABLE, DesiredFile

FILE = DesiredFile({"note": "x"}, "d1")


@pytest.mark.parametrize(
    ("file", "noted", "expected"),
    [
        (None, None, None),
        (FILE, None, Asked({"note": "x"}, "d1")),
        (FILE, "d1", None),
        (FILE, "d0", Asked({"note": "x"}, "d1")),
        (None, "d1", Asked(None, f"d1{MISSING}")),
        (None, f"d1{MISSING}", None),
        (FILE, f"d1{MISSING}", Asked({"note": "x"}, "d1")),
        (UNREADABLE, None, None),
        (UNREADABLE, "d1", None),
    ],
)
def test_what_is_new_in_a_desired_file(
    file: DesiredFile | None, noted: str | None, expected: Asked | None
) -> None:
    assert asked(file, noted) == expected


def test_a_missing_file_is_told_and_no_other() -> None:
    assert [desired_file(note) for note in (None, "d1", f"d1{MISSING}")] == [None, None, "missing"]
