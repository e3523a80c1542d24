"""`datastore.kinds` loads a module when one of its names is asked for: every name must have one."""

from __future__ import annotations

from datastore import kinds


def test_each_name_is_found_in_the_module_that_is_said_to_have_it() -> None:
    assert sorted(kinds._MODULES) == sorted(kinds.__all__)
    for name in kinds.__all__:
        assert getattr(kinds, name) is not None
