import json
from pathlib import Path

import pytest

from samplewise.cli import main
from small_fit import small_fit


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
    assert "unseen samples of test" in shown.out
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
        ([str(tmp_path / "nowhere")], "there is no such folder"),
        ([str(tmp_path / "empty")], "holds no run"),
        ([str(run), str(tmp_path / "torn")], "cannot be read as a run"),
        ([], "Missing argument"),
    ):
        assert main(["report", *arguments, "--out", str(out)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        assert message in shown.err
    assert not out.exists()
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    assert "expected --out as a file" in capsys.readouterr().err
