import csv
import json
import math
import os
import signal
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_study import killed_run, small_data, small_run, small_settings
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from forked import Forked
from samplewise import audit
from samplewise.errors import CheckpointError, ConfigurationError, DataError
from samplewise.storage import load_state
from studies.data import ImageData
from studies.mnist.digit_network import study_problem
from studies.mnist.for_report import read_study
from studies.mnist.results import read_results
from studies.mnist.rows import parse_row
from studies.mnist.settings import SETTINGS, StudySettings, row_folder
from studies.mnist.study import Job, JobFailedError, is_complete, run_jobs, run_row, warm_start
from studies.mnist.table_one import numbers_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    small_run(out, "classification", "penalty:5:1.1")
    return out


def test_the_result_is_what_an_audit_of_the_kept_model_finds(run: Path) -> None:
    data = small_data()
    result = next(found for found in read_results(run) if found.row.kind == "penalty")
    model = small_settings(data).network()
    model.load_state_dict(load_state(result.folder / "model.safetensors")["model"])
    for split, images in (("train", data.train), ("test", data.test)):
        found = audit(study_problem(0.05), model, images)
        assert result.numbers(split)["objective"] == pytest.approx(found.objective)
        assert result.numbers(split)["satisfied"] == found["reconstruction"].satisfied
        assert result.numbers(split)["mse"] == pytest.approx(found.means["reconstruction"])


def test_a_row_may_average_its_weights(tmp_path: Path) -> None:
    (result,) = small_run(tmp_path, "penalty:5:1.1,average=0.9")
    assert json.loads((result.folder / "fit" / "run.json").read_text())["asked"]["average"] == 0.9
    kept = load_state(result.folder / "model.safetensors")["model"]
    torch.testing.assert_close(kept, load_file(result.folder / "fit" / "best.safetensors"), rtol=0, atol=0)
    last = load_state(max((result.folder / "fit" / "checkpoints").iterdir()))["model"]
    assert not torch.equal(kept["classifier.weight"], last["classifier.weight"])


def test_selected_and_last_are_epochs_of_the_history(run: Path) -> None:
    for result in read_results(run):
        with (result.folder / "fit" / "history.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
        for split in ("train", "test"):
            assert result.numbers(split, "last") == numbers_of(rows[-1], split)
            assert result.numbers(split) == numbers_of(rows[result.selected["epoch"] - 1], split)
        if result.row.kind == "penalty":
            shares = [float(row["train/reconstruction/satisfied"]) for row in rows]
            assert shares[result.selected["epoch"] - 1] == max(shares)
        else:
            assert result.selected["epoch"] == 3  # for classification only: the last


def test_the_errors_are_counted_once_each(run: Path) -> None:
    for result in read_results(run):
        assert result.samples == {"train": 60, "test": 30}
        for merged in (1, 4):
            spread = result.errors(merged)
            for split, samples in result.samples.items():
                assert sum(spread.counts[split]) + sum(spread.beyond[split]) == samples
            bins = zip(spread.edges, spread.counts["train"], strict=False)
            within = sum(count for edge, count in bins if edge < 0.05 - 1e-9)
            assert within == round(60 * result.numbers("train")["satisfied"])


def test_the_examples_hold_the_worst_reconstructions(run: Path) -> None:
    result = read_results(run)[0]
    examples = result.examples()
    worst = examples["test/error"]
    assert torch.equal(worst, worst.sort(descending=True).values)
    assert float(worst[0]) == pytest.approx(float(result.epoch()["test/reconstruction/worst"]) + 0.05, abs=1e-6)
    originals = small_data().test.tensors[0][examples["test/index"]]
    assert torch.equal(examples["test/original"], (originals * 255).round().to(torch.uint8))


def test_a_black_image_is_measured_beside_the_decoder(run: Path) -> None:
    result = next(found for found in read_results(run) if found.row.kind == "classification")
    pixels = small_data().train.tensors[0].double()
    assert result.black["train"]["mse"] == pytest.approx(float((pixels**2).mean()), rel=1e-6)
    assert result.numbers("train")["mse"] != pytest.approx(result.black["train"]["mse"], rel=1e-2)


def test_the_result_says_where_it_comes_from(run: Path) -> None:
    stored = json.loads((read_results(run)[0].folder / "result.json").read_text())
    assert {"command", "commit", "versions", "seed", "device"} <= set(stored["provenance"])
    assert SETTINGS.read(run).theta == 0.05


def test_rows_start_from_one_warm_start_and_do_not_share_it(tmp_path: Path) -> None:
    data = small_data()
    settings = small_settings(data)
    first = warm_start(settings, data, 0, tmp_path)
    again = warm_start(settings, data, 0, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    with torch.no_grad():
        next(first.parameters()).zero_()
    kept = warm_start(settings, data, 0, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(kept.parameters(), again.parameters(), strict=True))
    other = warm_start(settings, data, 1, tmp_path)
    assert not torch.equal(next(other.parameters()), next(again.parameters()))


def test_the_warm_start_trains_encoder_and_classifier_only(tmp_path: Path) -> None:
    data = small_data()
    settings = small_settings(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = settings.network()
    warm = warm_start(settings, data, 0, tmp_path)
    last = load_state(max((tmp_path / "warm" / "seed-0" / "fit" / "checkpoints").iterdir()))["model"]
    assert all(torch.equal(value, last[name]) for name, value in warm.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(warm.decoder.parameters(), fresh.decoder.parameters(), strict=True))
    assert not torch.equal(warm.classifier.weight, fresh.classifier.weight)


def test_a_complete_row_is_left_alone(run: Path) -> None:
    row = parse_row("penalty:5:1.1")
    assert is_complete(run, row, 0)
    before = (row_folder(run, row, 0) / "result.json").stat().st_mtime_ns
    run_row(small_settings(small_data()), small_data(), row, 0, run)
    assert (row_folder(run, row, 0) / "result.json").stat().st_mtime_ns == before


def test_tensorboard_shows_originals_above_their_reconstructions(tmp_path: Path) -> None:
    data, row = small_data(), parse_row("penalty:5:1.1")
    run_row(small_settings(data), data, row, 0, tmp_path, tensorboard=True)
    reader = EventAccumulator(str(next(row_folder(tmp_path, row, 0).rglob("events.*"))))
    reader.Reload()
    assert reader.Tags()["images"] == ["train/original and reconstruction", "test/original and reconstruction"]
    stored = Image.open(BytesIO(reader.Images("test/original and reconstruction")[-1].encoded_image_string))
    shown = torch.from_numpy(np.array(stored.convert("L"))).float()
    assert shown.shape == (8, 32)  # eight pictures of 4 x 4
    first = data.test.tensors[0][:8].view(8, 4, 4)
    originals = torch.cat(list(255 - 255 * first), dim=1)
    torch.testing.assert_close(shown[:4], originals, rtol=0, atol=1.0)
    assert (shown[4:] - shown[:4]).abs().mean() > 1


def test_a_killed_row_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """A process that is killed in the middle of a row, then the row again in this one."""
    code, _, err = Forked(killed_run, tmp_path / "a", "auglag:50:1.1:5,lr=cosine", told=tmp_path / "told").finish()
    assert code == 9, err
    with pytest.raises(DataError, match="no row is complete yet"):
        read_results(tmp_path / "a")
    resumed = small_run(tmp_path / "a", "auglag:50:1.1:5,lr=cosine")
    whole = small_run(tmp_path / "b", "auglag:50:1.1:5,lr=cosine")
    first, second = (load_state(found[0].folder / "model.safetensors")["model"] for found in (resumed, whole))
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert all(resumed[0].numbers(split, "last") == whole[0].numbers(split, "last") for split in ("train", "test"))


def test_a_cosine_falls_towards_zero(tmp_path: Path) -> None:
    (rates,) = small_run(tmp_path, "penalty:5:1.1,lr=cosine")[0].history("lr")
    assert rates == pytest.approx([1e-3 * (1 + math.cos(math.pi * epoch / 3)) / 2 for epoch in range(3)])


def test_two_processes_cannot_train_one_row(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    row = parse_row("penalty:5:1.1")
    folder = row_folder(tmp_path, row, 0)
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another process"):
            run_row(small_settings(small_data()), small_data(), row, 0, tmp_path)


def test_a_folder_of_another_run_is_refused_and_untouched(tmp_path: Path) -> None:
    data = small_data()
    settings = small_settings(data)
    SETTINGS.open(tmp_path / "run", settings, resume=False)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(CheckpointError, match="--resume"):
        SETTINGS.open(tmp_path / "run", settings, resume=False)
    SETTINGS.open(tmp_path / "run", settings, resume=True)
    for other, said in (
        (
            StudySettings.of(data, theta=0.06, hidden=16, code=6, epochs=3, warm_epochs=1, batch_size=20),
            "theta 0.05 there",
        ),
        (small_settings(data.with_validation(10)), "held_out test there, validation here"),
        (small_settings(data, epochs=4), "epochs 3 there, 4 here"),
    ):
        with pytest.raises(CheckpointError, match=said):
            SETTINGS.open(tmp_path / "run", other, resume=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert SETTINGS.read(tmp_path / "run") == settings


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="is not a run of this study"):
        SETTINGS.open(tmp_path, small_settings(small_data()), resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(DataError, match="holds no run"):
        SETTINGS.read(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "other"}')
    with pytest.raises(CheckpointError, match="this version"):
        SETTINGS.read(tmp_path)


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"epochs": 0}, {"code": 0}, {"warm_epochs": -1}])
def test_settings_that_cannot_be_right_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        StudySettings.of(small_data(), **wrong)


def test_a_margin_of_the_whole_bound_is_refused_before_any_training(tmp_path: Path) -> None:
    data = small_data()
    with pytest.raises(ConfigurationError, match=r"margin below theta"):
        run_row(small_settings(data), data, parse_row("penalty:1:1.01,margin=0.05"), 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_images_need_not_be_square_nor_a_part_as_long_as_a_line_of_pictures(tmp_path: Path) -> None:
    images, labels = torch.randint(0, 256, (45, 5, 3)), torch.arange(45) % 3
    data = ImageData.from_bytes("oblong", (images[:40], labels[:40]), (images[40:], labels[40:]))
    settings = small_settings(data, epochs=1)
    assert settings.shape == (5, 3)
    SETTINGS.write(tmp_path, settings)
    run_row(settings, data, parse_row("penalty:1:1.01"), 0, tmp_path)
    (result,) = read_results(tmp_path)
    assert len(result.examples()["test/original"]) == 5
    (run,) = read_study(tmp_path) or ()
    assert {image.shape for image in run.galleries[0].pictures[0].images.values()} == {(5, 3)}


def test_a_result_of_another_kind_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "rows" / "x" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"result\.json: .* version"):
        read_results(tmp_path)


def die_while_loading() -> tuple[ImageData, None]:
    """As for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return small_data(), None


def test_rows_that_did_not_fail_are_not_called_so_when_a_process_is_lost(tmp_path: Path) -> None:
    settings = small_settings(small_data())
    SETTINGS.open(tmp_path / "out", settings, resume=False)
    todo = [Job(parse_row(name), 0) for name in ("fixed:10", "fixed:100")]
    with pytest.raises(JobFailedError, match="0 of 2"):
        run_jobs(todo, settings, tmp_path / "out", die_while_loading, processes=2, threads=1)


def test_one_row_is_trained_in_this_process_with_what_was_loaded(tmp_path: Path) -> None:
    data = small_data()
    settings = small_settings(data)
    SETTINGS.open(tmp_path, settings, resume=False)
    seen: list[int] = []
    job, loaded = Job(parse_row("fixed:10"), 0), []

    def load() -> tuple[ImageData, None]:
        loaded.append(os.getpid())
        return data, None

    run_jobs([job], settings, tmp_path, load, processes=2, watch=seen.append)
    assert loaded == [os.getpid()]
    assert is_complete(tmp_path, job.row, 0)
    assert seen[-1] == settings.epochs
