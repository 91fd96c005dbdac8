from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import samplewise as sw
from samplewise.errors import ConfigurationError
from samplewise.report.tensorboard import Pictures, in_lines
from small import OnAudit, fit, make_data, make_model, same_weights


def run(folder: Path | None, **options: Any) -> tuple[nn.Module, sw.Solution]:
    options = {"audit_on": {"test": make_data(seed=1)}, "progress": False, **options}
    if options.pop("tensorboard", False):
        logger = TensorBoardLogger(root_dir=folder or "", name="tensorboard", version="")
        options["fabric"] = Fabric(accelerator="cpu", devices=1, loggers=logger)
    solution = fit(None, make_model(norm=True), batch_size=32, checkpoint=folder, **options)
    return solution.model, solution


def shown(folder: Path) -> dict[str, Any]:
    """What has the first samples drawn while a run is watched by TensorBoard."""
    logger = TensorBoardLogger(root_dir=folder, name="tensorboard", version="")
    fabric = Fabric(accelerator="cpu", devices=1, loggers=logger)
    return {"fabric": fabric, "callbacks": [Pictures(fabric, {"test": make_data(seed=1)}, draw)]}


def draw(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    x, _ = batch
    _, decoded = model(x)
    return {"input": x.sigmoid().unsqueeze(0), "in colour": decoded.sigmoid().expand(3, -1, -1)}


def read(folder: Path) -> EventAccumulator:
    (events,) = folder.rglob("events.*")
    reader = EventAccumulator(str(events), size_guidance={"histograms": 0, "images": 0})
    reader.Reload()
    return reader


def test_tensorboard_files_hold_the_numbers_of_the_history(tmp_path: Path) -> None:
    _, solution = run(tmp_path / "run", tensorboard=True)
    reader = read(tmp_path)
    for name in ("running/objective", "test/reconstruction"):
        found = [event.value for event in reader.Scalars(name)]
        assert found == pytest.approx(solution.history.column(name))
    histograms = [event.histogram_value for event in reader.Histograms("test/reconstruction/distribution")]
    assert [histogram.num for histogram in histograms] == [200] * 3
    means = [histogram.sum / histogram.num for histogram in histograms]
    assert means == pytest.approx(solution.history.column("test/reconstruction"))
    assert reader.Tags()["images"] == []


def test_loggers_have_written_all_when_a_run_returns(tmp_path: Path) -> None:
    # One that would flush by itself only after a day.
    logger = TensorBoardLogger(root_dir=tmp_path, name="tensorboard", version="", flush_secs=86400)
    _, solution = run(None, fabric=Fabric(accelerator="cpu", devices=1, loggers=logger))
    found = [event.value for event in read(tmp_path).Scalars("test/objective")]
    assert found == pytest.approx(solution.history.column("test/objective"))


class Kept(Logger):
    """Notes what it is called for; ``fails`` at the end."""

    name, version = "kept", 0

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.experiment, self.fails = None, fails

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.calls.append(f"epoch {step}")

    def log_hyperparams(self, *arguments: object, **named: object) -> None:
        """Not called."""

    def save(self) -> None:
        self.calls.append("save")

    def finalize(self, status: str) -> None:
        if self.fails:
            raise OSError("no room")
        self.calls.append(status)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_loggers_are_finalised_however_a_run_ends(error: type[BaseException]) -> None:
    first, second = Kept(), Kept()
    fabric = Fabric(accelerator="cpu", devices=1, loggers=[first, second])
    run(None, fabric=fabric)
    assert first.calls == second.calls == ["epoch 1", "epoch 2", "epoch 3", "save", "success"]

    def end(model: nn.Module, epoch: int, audits: object) -> None:
        if epoch == 2:
            raise error

    with pytest.raises(error):
        run(None, fabric=fabric, callbacks=[OnAudit(end)])
    assert first.calls[5:] == second.calls[5:] == ["epoch 1", "save", "failed"]


def test_a_logger_that_cannot_write_costs_a_warning_only() -> None:
    fabric = Fabric(accelerator="cpu", devices=1, loggers=[Kept(fails=True), Kept()])
    with pytest.warns(UserWarning, match="Kept could not write"):
        _, solution = run(None, fabric=fabric)
    assert len(solution.history.rows) == 3
    assert fabric.loggers[1].calls[-1] == "success"  # type: ignore[attr-defined]


def test_the_first_samples_are_drawn_at_every_audit_by_the_model_as_it_ships(tmp_path: Path) -> None:
    model, _ = run(tmp_path, **shown(tmp_path), validation=sw.Validation(every=2))
    reader = read(tmp_path)
    assert reader.Tags()["images"] == ["test/input", "test/in colour"]
    assert [event.step for event in reader.Images("test/input")] == [2, 3]
    x, y = make_data(seed=1).tensors
    with torch.no_grad():
        expected = draw(model.eval(), (x[:8], y[:8]))
    for name, image in expected.items():
        stored = Image.open(BytesIO(reader.Images(f"test/{name}")[-1].encoded_image_string)).convert("RGB")
        found = torch.from_numpy(np.array(stored)).permute(2, 0, 1) / 255
        torch.testing.assert_close(found, image.expand(3, -1, -1), rtol=0, atol=1 / 255)


def test_watching_changes_no_weight(tmp_path: Path) -> None:
    alone, _ = run(None)
    watched, _ = run(tmp_path, **shown(tmp_path))
    assert same_weights(alone, watched)


def test_each_audit_is_handed_on_with_the_model_as_it_ships() -> None:
    seen: list[tuple[int, float, bool]] = []

    def note(model: nn.Module, epoch: int, audits: Mapping[str, sw.Audit]) -> None:
        seen.append((epoch, audits["test"].objective, model.training or torch.is_grad_enabled()))

    model, solution = run(None, callbacks=[OnAudit(note)], validation=sw.Validation(every=2))
    objective = solution.history.column("test/objective")
    assert seen == [(2, objective[1], False), (3, objective[2], False)]
    assert model.training  # as before


def test_each_epoch_is_handed_on_with_its_row() -> None:
    class Rows(sw.Callback):
        def __init__(self) -> None:
            self.rows: list[Mapping[str, Any]] = []

        def on_epoch(self, row: Mapping[str, Any]) -> None:
            self.rows.append(row)

    rows = Rows()
    _, solution = run(None, callbacks=[rows])
    assert rows.rows == solution.history.rows


def test_a_function_is_no_callback() -> None:
    with pytest.raises(ConfigurationError, match="callbacks"):
        run(None, callbacks=[print])


def test_batches_become_lines_of_one_image() -> None:
    first, second = torch.zeros(3, 1, 4, 5), torch.ones(3, 1, 2, 5)
    first[1] = 0.5
    image = in_lines(first, second)
    assert image.shape == (1, 6, 15)
    assert (image[0, :4, 5:10] == 0.5).all()
    assert (image[0, 4:] == 1).all()
