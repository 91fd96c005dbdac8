"""Commands of the studies that bad input must stop."""

import pytest

from studies.commands import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, told_before: bool = False) -> str:
    """The line that a bad command ends with; all that it says, unless it has told of progress before."""
    assert main([*map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    *before, line = shown.err.splitlines()
    assert told_before or not before
    return line
