"""What a command logs, and where that cannot be written."""

from __future__ import annotations

import subprocess
import sys

import pytest

FULL = """
import logging, sys
from swamp.cli.command import _log_more
from swamp.cli.console import Console
from swamp.cli.logs import log_to

class FullAtFirst:
    full = True
    def write(self, text):
        if self.full:
            self.full = False
            raise OSError(28, "No space left on device")
        sys.__stderr__.write(text)
    def flush(self):
        pass

sys.stderr = FullAtFirst()
{set_up}
logging.error("lost")
logging.error("told")
"""


@pytest.mark.parametrize("set_up", ["log_to(Console())", "_log_more()"])
def test_a_line_that_finds_no_room_is_left_out(set_up: str) -> None:
    """Regression: a traceback of Python's logging stood in its place."""
    code = FULL.replace("{set_up}", set_up)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line.endswith("told")
