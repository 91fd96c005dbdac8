import json
import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint

import pytest

import samplewise.cli
from samplewise.cli import main


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a bad command ends with."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.mark.parametrize("command", ["", "report", "env"])
def test_help_shows_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"Example: samplewise {command}" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_a_bad_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such command 'reports'" in error(capsys, "reports")
    assert "No such option" in error(capsys, "env", "--jsn")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.count("\n") > 10


def test_env_prints_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"python", "torch", "samplewise"} <= set(facts["versions"])
    assert facts["machine"]["cores"] >= 1
    assert main(["env"]) == 0
    assert f"torch: {facts['versions']['torch']}" in capsys.readouterr().out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("samplewise 0.")


def formerly(words: Sequence[str]) -> int:
    print(*words)
    return 7


def test_a_command_that_moved_is_run_by_the_package_that_has_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("watermark-embed", f"{__name__}:formerly", "samplewise.commands")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    assert main(["watermark", "embed", "x.png"]) == 7
    assert capsys.readouterr().out == "watermark embed x.png\n"
    assert "install studies" in error(capsys, "mnist", "--rows", "all")
    assert set(samplewise.cli.MOVED) == {"demo", "mnist", "chest", "watermark"}
