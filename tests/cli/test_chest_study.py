"""The commands of the study, one after the other: classifier, watermarks with and without it, impact."""

import json
from pathlib import Path

import pytest

from samplewise.cli import main
from small_chest import make_store

CLASSIFIER = ("--epochs", "1", "--batch-size", "8", "--no-augment")
MARK = ("--size", "32", "--bits", "4", "--steps", "100", "--message-steps", "50", "--batch-size", "2", "--psnr", "30")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chest")
    make_store(folder)
    store = str(folder / "store")
    assert main(["chest", "classifier", "--store", store, *CLASSIFIER, "--out", str(folder / "classifier")]) == 0
    assert main(["watermark", "train", "--data", store, *MARK, "--out", str(folder / "plain")]) == 0
    return folder


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def test_the_study_from_end_to_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, classifier, kept = (str(folder / name) for name in ("store", "classifier", "kept"))
    bound = ("--classifier", classifier, "--diagnosis", "0.05")
    assert main(["watermark", "train", "--data", store, *MARK, *bound, "--out", kept]) == 0
    history = (folder / "kept" / "fit" / "history.csv").read_text().splitlines()[0]
    assert "validation/diagnosis/satisfied" in history
    assert json.loads((folder / "kept" / "recipe.json").read_text())["settings"]["diagnosis"] == 0.05
    capsys.readouterr()
    command = ["chest", "impact", "--classifier", classifier, "--store", store, "--out", str(folder / "impact")]
    command += ["--watermark", str(folder / "plain"), "--watermark", kept, "--fewest", "1", "--resamples", "100"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in report["runs"]] == ["plain", "kept"]
    assert report["paper_column"] == {}  # the paper has no network like these
    assert report == json.loads((folder / "impact" / "report.json").read_text())
    assert {path.name for path in (folder / "impact").iterdir()} == {
        "report.json",
        "table.md",
        "table.csv",
        "impact.png",
        "impact.svg",
    }
    (folder / "impact" / ".report.json.x.tmp").touch()  # of a run that was killed
    assert main(command) == 0  # its own files may be replaced
    assert "| mean" in capsys.readouterr().out


def test_a_classifier_says_what_it_reaches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["chest", "classifier", "--store", str(folder / "store"), *CLASSIFIER]
    assert "add --resume" in error(capsys, *command, "--out", folder / "classifier")
    assert main([*command, "--out", str(folder / "classifier"), "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "Pleural_Thickening" in shown
    assert "fewer than 30 positives: Atelectasis" in shown


def test_a_report_of_a_classifier_has_its_scores(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(folder / "classifier"), "--out", str(out)]) == 0
    page = out.read_text()
    assert "AUROC on test, 6 images of 6 patients" in page
    assert "Pleural Thickening" in page
    assert "Find 14 pathologies" in page
    assert "of all such samples" not in page  # nothing was required, so nothing is promised
    capsys.readouterr()
    assert "chest classifier wrote" in error(capsys, "report", tmp_path, "--out", out)


def test_a_result_is_there_before_the_classifier(folder: Path, tmp_path: Path) -> None:
    # Readers take the classifier as the sign of a finished run, so what they read beside it must come first.
    run = folder / "classifier"
    assert (run / "result.json").stat().st_mtime_ns <= (run / "model.safetensors").stat().st_mtime_ns


def test_bad_input_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = folder / "store", ("--out", tmp_path / "out")
    train = ("chest", "classifier", *CLASSIFIER, *out, "--store")
    assert "is not a store of pictures" in error(capsys, *train, tmp_path)
    assert "no such file" in error(capsys, *train, store, "--weights", tmp_path / "densenet.pth").lower()
    assert "do not fill a batch of 64" in error(capsys, *train, store, "--batch-size", "64")
    judge = ("chest", "impact", "--store", store, *out)
    runs = ("--classifier", folder / "classifier", "--watermark", folder / "plain")
    assert "holds no run of classifier training" in error(capsys, *judge, "--classifier", tmp_path, *runs[2:])
    assert "no such folder" in error(capsys, *judge, *runs[:2], "--watermark", tmp_path / "nowhere")
    assert "no pathology has 30 positives" in error(capsys, *judge, *runs)
    other = make_store(tmp_path / "other", patients=9).folder
    assert "other pictures" in error(capsys, *judge[:2], "--store", other, *out, *runs)
    (tmp_path / "out" / "notes.txt").parent.mkdir(exist_ok=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "holds notes.txt" in error(capsys, *judge, *runs)
    mark = ("watermark", "train", "--data", store, *MARK, *out)
    assert "give both or neither" in error(capsys, *mark, "--diagnosis", "0.02")
    assert "give both or neither" in error(capsys, *mark, "--classifier", folder / "classifier")
