"""The commands of the study, one after the other: classifier, watermarks with and without it, impact."""

import json
import os
import signal
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from bad_commands import refused
from forked import Forked
from samplewise.cli import main as report
from small_chest import make_store
from studies.chest import impact
from studies.chest.densenet import Classifier
from studies.commands import main

CLASSIFIER = ("--epochs", "1", "--batch-size", "8")
MARK = ("--network", "swift", "--size", "32", "--bits", "4", "--psnr", "30")
SHORT = "message_rounds = 1\nrounds = 1\nbatch_size = 2\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chest")
    make_store(folder)
    store, recipe = str(folder / "store"), folder / "plain.toml"
    recipe.write_text("augment = false\nepochs = 7\n")
    command = ["chest", "classifier", "--store", store, *CLASSIFIER, "--recipe", str(recipe)]
    assert main([*command, "--out", str(folder / "classifier")]) == 0
    (folder / "short.toml").write_text(SHORT)
    short = (*MARK, "--recipe", str(folder / "short.toml"))
    assert main(["watermark", "train", "--data", store, *short, "--out", str(folder / "plain")]) == 0
    return folder


def test_the_study_from_end_to_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, classifier, kept = (str(folder / name) for name in ("store", "classifier", "kept"))
    bound = ("--classifier", classifier, "--diagnosis", "0.05", "--recipe", str(folder / "short.toml"))
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
        "impact.png",
        "impact.svg",
    }
    (folder / "impact" / ".report.json.x.tmp").touch()  # of a run that was killed
    assert main(command) == 0  # its own files may be replaced
    assert "| mean" in capsys.readouterr().out


def killed(*arguments: str) -> int:
    """The command in a process that is killed when it comes to the second run."""
    plain = impact.evaluate_run

    def evaluate_run(run: Any, *arguments: Any, **options: Any) -> Any:
        if run.name == "again":
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(run, *arguments, **options)

    impact.evaluate_run = evaluate_run
    return main(arguments)


@pytest.mark.usefixtures("quick_figures")
def test_a_comparison_that_was_killed_goes_on(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = (*MARK, "--recipe", str(folder / "short.toml"), "--seed", "1")
    store = str(folder / "store")
    assert main(["watermark", "train", "--data", store, *short, "--out", str(folder / "again")]) == 0
    common = ["--classifier", str(folder / "classifier"), "--store", str(folder / "store"), "--fewest", "1"]
    runs = ["--watermark", str(folder / "plain"), "--watermark", str(folder / "again"), "--resamples", "100"]
    command = ["chest", "impact", *common, *runs]
    out = tmp_path / "killed"
    code, _, err = Forked(killed, *command, "--out", str(out), told=tmp_path).finish()
    assert code == -signal.SIGKILL, err
    assert len(list((out / "unfinished").iterdir())) == 3
    torn = max((out / "unfinished").iterdir(), key=os.path.getmtime)
    torn.write_bytes(torn.read_bytes()[:-100])
    capsys.readouterr()
    assert main([*command, "--out", str(out), "--resume", "--json"]) == 0
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if "6 of 6 images" in line]
    assert len(lines) == 1  # only what was torn is done again
    assert not (out / "unfinished").exists()
    assert main([*command, "--out", str(tmp_path / "whole"), "--json"]) == 0
    whole = capsys.readouterr()
    assert "originals: 6 of 6 images" in whole.err
    assert json.loads(whole.out)["runs"] == json.loads(shown.out)["runs"]


def test_a_classifier_says_what_it_reaches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = folder / "classifier" / "recipe.toml"
    kept = tomllib.loads(whole.read_text())
    assert (kept["augment"], kept["epochs"], kept["batch_size"], kept["size"]) == (False, 1, 8, 32)
    command = ["chest", "classifier", "--store", str(folder / "store"), "--recipe", str(whole)]
    assert "add --resume" in refused(capsys, *command, "--out", folder / "classifier")
    with patch.object(Classifier, "__init__", autospec=True, side_effect=Classifier.__init__) as built:
        assert main([*command, "--out", str(folder / "classifier"), "--resume"]) == 0
    assert built.call_count == 1
    shown = capsys.readouterr().out
    assert "| Pleural Thickening " in shown
    assert "fewer than 30 positives: Atelectasis" in shown


def test_a_report_of_a_classifier_has_its_scores(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert report(["report", str(folder / "classifier"), "--out", str(out)]) == 0
    page = out.read_text()
    assert "AUROC on test, 6 images of 6 patients" in page
    assert "Pleural Thickening" in page
    assert "Find 14 pathologies" in page
    assert "of all such samples" not in page  # nothing was required, so nothing is promised
    capsys.readouterr()
    assert report(["report", str(tmp_path), "--out", str(out)]) == 2


def test_a_result_is_there_before_the_classifier(folder: Path, tmp_path: Path) -> None:
    # Readers take the classifier as the sign of a finished run, so what they read beside it must come first.
    run = folder / "classifier"
    assert (run / "result.json").stat().st_mtime_ns <= (run / "model.safetensors").stat().st_mtime_ns


def test_bad_input_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = folder / "store", ("--out", tmp_path / "out")
    train = ("chest", "classifier", *CLASSIFIER, *out, "--store")
    assert "not a store" in refused(capsys, *train, tmp_path)
    assert "no such file" in refused(capsys, *train, store, "--weights", tmp_path / "densenet.pth").lower()
    assert "batch of 64" in refused(capsys, *train, store, "--batch-size", "64")
    judge = ("chest", "impact", "--store", store, *out)
    runs = ("--classifier", folder / "classifier", "--watermark", folder / "plain")
    assert "classifier training" in refused(capsys, *judge, "--classifier", tmp_path, *runs[2:])
    assert "no such folder" in refused(capsys, *judge, *runs[:2], "--watermark", tmp_path / "nowhere")
    assert "30 positives" in refused(capsys, *judge, *runs)
    other = make_store(tmp_path / "other", patients=9).folder
    assert "other pictures" in refused(capsys, *judge[:2], "--store", other, *out, *runs)
    (tmp_path / "out" / "notes.txt").parent.mkdir(exist_ok=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "holds notes.txt" in refused(capsys, *judge, *runs)
    mark = ("watermark", "train", "--data", store, *MARK, *out)
    assert "give both or neither" in refused(capsys, *mark, "--diagnosis", "0.02")
    assert "give both or neither" in refused(capsys, *mark, "--classifier", folder / "classifier")
