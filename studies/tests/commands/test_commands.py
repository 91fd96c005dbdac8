import re
from pathlib import Path

import pytest

from bad_commands import refused
from samplewise.cli import main as library
from samplewise.errors import ConfigurationError
from studies.commands import main
from studies.mnist.command import Source, share_cores
from studies.options import Devices
from studies.progress import duration, progress

SHORT = ("--epochs", "2", "--theta", "0.05", "--code", "4", "--jobs", "1", "--threads", "1")


@pytest.mark.parametrize("command", ["", "demo", "mnist"])
def test_help_shows_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([*command.split(), "--help"]) == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert f"Example: studies {command}" in shown
    if command == "mnist":
        assert "--row penalty:100:1.01 " in shown


def test_a_bad_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such command 'demos'" in refused(capsys, "demos")
    assert "No such option" in refused(capsys, "demo", "--jsn")
    assert "Missing option '--out'" in refused(capsys, "mnist", "--rows", "all")
    assert "--epochs" in refused(capsys, "mnist", "--out", "x", "--epochs", "0")


def test_mnist_refuses_what_cannot_be_right(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = ("mnist", "--out", str(out), "--data")
    assert "penalty:TAU0:GAMMA" in refused(capsys, *common, "digits", "--row", "penalty:100")
    assert "--rows" in refused(capsys, *common, "digits", "--rows", "some")
    assert "no rows to run" in refused(capsys, *common, "digits")
    assert "give --data" in refused(capsys, *common[:-1], "--rows", "all")
    assert "no such folder" in refused(capsys, *common, str(tmp_path / "nowhere"), "--rows", "all")
    assert "expected one of mnist" in refused(capsys, *common, str(tmp_path), "--rows", "all", "--dataset", "cifar")
    assert "validation part" in refused(capsys, *common, "digits", "--rows", "all", "--validation", "5000")
    assert "holds no run" in refused(capsys, *common[:-1], "--table-only")
    assert not out.exists()


def test_cores_go_to_rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert share_cores(11, None, None) == (8, 1)
    assert share_cores(3, None, None) == (3, 2)
    assert share_cores(1, None, None) == (1, 8)
    assert share_cores(11, 2, None) == (2, 4)
    assert share_cores(11, None, 4) == (2, 4)
    assert share_cores(11, 16, None) == (11, 1)


def test_device_flags_become_a_fabric() -> None:
    fabric = Devices("cpu", precision="bf16-mixed")()
    assert fabric.device.type == "cpu"
    assert not Devices().several
    assert Devices(devices=2).several
    for bad in (Devices("quantum"), Devices(precision="7-bit"), Devices(strategy="hope")):
        with pytest.raises(ConfigurationError, match="device flags"):
            bad()


def test_a_source_can_hold_out_a_validation_part() -> None:
    (plain, _), (held, _) = (Source("digits", "mnist", Devices(), held)() for held in (0, 100))
    assert len(plain.train) == len(held.train) + 100
    assert (plain.held_out, held.held_out, len(held.test)) == ("test", "validation", 100)


def test_progress_in_a_log_is_a_line_at_once_and_at_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("3 rows", 300, unit="epochs") as tell:
        assert capsys.readouterr().err == "3 rows: 300 epochs\n"
        for epochs in range(0, 301, 5):
            tell(epochs)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "3 rows: 30 of 300 epochs"
    assert lines[-1] == "3 rows: 300 of 300 epochs"
    assert len(lines) == 10


def test_slow_progress_in_a_log_is_a_line_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = 0.0
    monkeypatch.setattr("studies.progress.time.monotonic", lambda: clock)
    with progress("marking", 1000) as tell:
        for done in range(1, 5):
            clock += 16.0
            tell(done)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "marking: 1,000 images",
        "marking: 2 of 1,000 images, about 8.9 h left",
        "marking: 4 of 1,000 images, about 5.9 h left",
    ]


def test_nothing_is_said_of_work_that_there_may_not_be(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("preparing \x1b[31m.gz") as tell:
        assert capsys.readouterr().err == ""
        tell(100, 1000)
        tell(100, 1000)
    assert capsys.readouterr().err == "preparing \\x1b[31m.gz: 100 of 1,000 images\n"


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with progress("penalty:100:1.01 [bold]", 20, unit="epochs") as tell:
        tell(13)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "13/20" in printed.err
    assert "penalty:100:1.01 [bold]" in printed.err


def test_numbers_are_in_words_for_people() -> None:
    assert [duration(s) for s in (0.4, 89, 600, 7200)] == ["0 s", "89 s", "10 min", "2.0 h"]


@pytest.mark.parametrize("group", [[], ["chest"], ["watermark"]])
def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str], group: list[str]) -> None:
    assert main(group) == 0
    assert capsys.readouterr().out.count("\n") > 10


@pytest.mark.usefixtures("forked_workers")
def test_settings_are_chosen_on_a_validation_part(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["mnist", "--data", "digits", "--row", "fixed:10", "--validation", "300", *SHORT, "--out", str(tmp_path)]
    assert main(command) == 0
    assert "## Validation, selected epoch" in capsys.readouterr().out
    assert (tmp_path / "figures" / "trade_off.png").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mnist", "--out", "x"], "studies mnist"),
        (["demo", "--jsn"], "studies demo"),
        (["chest", "prepare"], "studies chest prepare"),
        (["watermark", "train"], "studies watermark train"),
        (["watermark", "evaluate"], "studies watermark evaluate"),
    ],
)
def test_the_spelling_of_before_says_the_new_one(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert library(words) == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert told in first
    assert last.startswith("studies: error:")


def test_errors_of_the_tool_are_one_line_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("torn")
    data = ("--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert "model.safetensors" in refused(capsys, "watermark", "train", *data, "--begin-with", str(tmp_path))


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("studies 0.")
