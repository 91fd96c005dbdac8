import json
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from samplewise.cli import main
from samplewise.cli.report import read_reports
from samplewise.report import RunReport
from small_fit import small_fit


@pytest.fixture(autouse=True)
def readers(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The readers of other packages: none, whatever is installed beside the library."""
    found: list[EntryPoint] = []
    monkeypatch.setattr("samplewise.cli.report.entry_points", lambda group: found)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    small_fit(folder)
    return folder


def test_a_report_is_written_and_the_verdict_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(run), "--out", str(out), "--title", "My run"]) == 0
    shown = capsys.readouterr()
    assert "at 95% confidence" in shown.out
    assert shown.err == f"The report is in {out}\n"
    assert "<h1>My run</h1>" in out.read_text()
    assert main(["report", str(run), str(run), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(out)
    assert [each["splits"][1]["samples"] for each in found["runs"]] == [51, 51]


def test_what_cannot_be_reported_on_is_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text('{"asked": ')
    (tmp_path / "empty").mkdir()
    out = tmp_path / "page.html"
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "nowhere"),
        ([str(tmp_path / "empty")], "no run"),
        ([str(run), str(tmp_path / "torn")], "torn"),
        ([], "argument"),
    ):
        assert main(["report", *arguments, "--out", str(out)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        assert message in shown.err
    assert not out.exists()
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err


def read_named(folder: Path) -> Sequence[RunReport] | None:
    named = folder / "named.txt"
    if not named.exists():
        return None
    return [RunReport(named.read_text(), str(folder), "", requirements=(), method="", selected="", splits=())]


def test_other_packages_read_their_own_runs(
    readers: list[EntryPoint], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readers.append(EntryPoint("not_installed", "not_installed:read", "samplewise.runs"))
    readers.append(EntryPoint("named", f"{__name__}:read_named", "samplewise.runs"))
    (tmp_path / "named.txt").write_text("theirs")
    assert [each.name for each in read_reports([tmp_path])] == ["theirs"]
    assert "not_installed" in capsys.readouterr().err
    assert [each.name for each in read_reports([run])] == ["one"]
