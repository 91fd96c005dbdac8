import csv
import json
from pathlib import Path

import numpy as np
import pytest
from small_study import small_data, small_run, small_settings

from samplewise.cli.report import read_reports
from samplewise.errors import CheckpointError, DataError
from samplewise.report.page import make_page
from studies.mnist.comparison import make_comparison


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "study"
    small_run(out, "penalty:10:1.1", "fixed:10")
    return out


def test_every_row_is_a_run_with_its_worst_pictures(study: Path) -> None:
    fixed, penalty = read_reports([study])
    assert [fixed.name, penalty.name] == ["Fixed (λ = 10)", "Penalty (τ₀ = 10, γ = 1.1)"]  # noqa: RUF001 - gamma
    stored = json.loads((Path(penalty.folder) / "result.json").read_text())
    train, test = penalty.splits
    assert (train.samples, test.samples) == (60, 30)
    with (Path(penalty.folder) / "fit" / "history.csv").open(newline="") as file:
        epoch = list(csv.DictReader(file))[stored["selected"]["epoch"] - 1]
    assert test.satisfied == float(epoch["test/reconstruction/satisfied"])
    assert test.violated == round((1 - test.satisfied) * 30)
    spread = penalty.distributions[0]
    assert sum(spread.counts["test"]) + sum(spread.beyond["test"]) == 30
    inside = sum(
        n for n, edge in zip(spread.counts["test"], spread.edges[1:], strict=True) if edge <= 0.05 * (1 + 1e-9)
    )
    assert inside == 30 - test.violated, "the bound is an edge"
    gallery = penalty.galleries[1]
    assert len(gallery.pictures) == 10
    assert {image.shape for picture in gallery.pictures for image in picture.images.values()} == {(4, 4)}
    assert np.ptp(gallery.pictures[0].images["original"]) > 0
    assert penalty.multipliers[0].total == 60
    assert make_page([fixed, penalty]).count("data:image/png") == 80  # ten pairs of each row and data set


def test_test_images_that_were_trained_on_promise_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = small_data()
    plain.test.tensors[0][:2] = plain.train.tensors[0][5:7]
    assert plain.shared == 2
    monkeypatch.setattr("small_study.small_data", lambda name: plain)
    found = small_run(tmp_path / "study", "fixed:10")
    (run,) = read_reports([tmp_path / "study"])
    assert [split.trained_on for split in run.splits] == [True, True]
    assert "2 of the test images" in make_comparison(small_settings(plain), found).text()


def test_a_study_without_a_complete_row_or_of_another_version_is_refused(study: Path, tmp_path: Path) -> None:
    settings = json.loads((study / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match="no row is complete"):
        read_reports([tmp_path])
    (tmp_path / "run.json").write_text(json.dumps({**settings, "format": "samplewise-mnist-99"}))
    with pytest.raises(CheckpointError, match="not a run of this version"):
        read_reports([tmp_path])


def test_a_torn_row_is_named_and_pictures_may_be_missing(study: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path in study.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".csv"):
            (copy / path.relative_to(study)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(study)).write_bytes(path.read_bytes())
    assert all(run.galleries == () for run in read_reports([copy]))
    history = next(copy.glob("rows/fixed*/seed-0/fit/history.csv"))
    history.write_text("epoch,test/objective\n1,abc\n")
    with pytest.raises(DataError, match="fixed-10"):
        read_reports([copy])
