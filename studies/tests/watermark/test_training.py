from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from floormark import errors as floormark
from floormark import network as floormark_network
from picture_folders import write_natural
from samplewise.errors import CheckpointError, ConfigurationError, DataError
from samplewise.storage import MODEL_FILE, save_state
from studies.pictures import Store, prepare
from studies.watermark.networks import Lattice, Swift, load_network, save_network
from studies.watermark.recipe import HIDDEN, LATTICE, RECIPE_FILE, SWIFT, Recipe
from studies.watermark.training import make_network, train

SMALL = replace(SWIFT, bits=4, size=32, batch_size=4, steps_per_round=3, message_rounds=1, rounds=2, audit_images=6)
SMALL_LATTICE = replace(
    LATTICE, bits=12, size=64, width=8, batch_size=4, steps_per_round=3, message_rounds=1, rounds=2, audit_images=4
)
SMALL_HIDDEN = replace(HIDDEN, bits=3, size=16, batch_size=4, rounds=2, every=1, audit_images=4)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_natural(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def store(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare(pictures, tmp_path_factory.mktemp("store") / "s", size=32)


@pytest.fixture(scope="module")
def tiny(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare(pictures, tmp_path_factory.mktemp("store") / "t", size=16)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_network(path / MODEL_FILE).state_dict()


def test_a_run_learns_the_message_first_and_then_raises_tau(store: Store, tmp_path: Path) -> None:
    solution = train(store, SMALL, tmp_path / "run", progress=False)
    rows = solution.history.rows
    assert [row["warmup"] for row in rows] == [True, False, False]
    assert [row["tau/psnr"] for row in rows[1:]] == pytest.approx([1e-3, 1.3e-3])
    assert rows[-1]["lr"] == pytest.approx(0.0, abs=1e-12)
    assert {"train/bit_error", "validation/psnr", "validation/psnr/violation_rate_upper"} <= set(rows[-1])
    again = load_network(tmp_path / "run" / MODEL_FILE)
    assert isinstance(again, Swift)
    assert not again.training


@pytest.mark.parametrize("network", ["swift", "hidden"])
def test_an_interrupted_run_goes_on_to_the_same_weights(
    store: Store, tiny: Store, tmp_path: Path, network: str
) -> None:
    recipe, data = (SMALL, store) if network == "swift" else (SMALL_HIDDEN, tiny)
    train(data, recipe, tmp_path / "whole", progress=False)
    interrupted = tmp_path / "interrupted"
    train(data, recipe, interrupted, progress=False)
    kept = sorted((interrupted / "fit" / "checkpoints").iterdir())
    kept[-1].unlink()
    (interrupted / MODEL_FILE).unlink()
    train(data, recipe, interrupted, progress=False)
    whole, parts = weights(tmp_path / "whole"), weights(interrupted)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_baseline_weighs_the_error_and_ignores_the_floor(tiny: Store, tmp_path: Path) -> None:
    solution = train(tiny, replace(SMALL_HIDDEN, image_loss=0.7, rate=0.05, rounds=5), tmp_path / "run", progress=False)
    rows = solution.history.rows
    assert "tau/psnr" not in rows[-1] or rows[-1]["tau/psnr"] == 0
    # What ships is what was selected, as for every other run, here by the objective alone.
    assert solution.selected.objective == min(row["validation/objective"] for row in rows)
    chosen, shipped = solution.model.state_dict(), weights(tmp_path / "run")
    assert all(torch.equal(shipped[name], value) for name, value in chosen.items())


def test_a_lattice_is_trained_with_a_floor_for_every_patch(pictures: Path, tmp_path: Path) -> None:
    data = prepare(pictures, tmp_path / "store", size=64)
    solution = train(data, SMALL_LATTICE, tmp_path / "run", progress=False)
    rows = solution.history.rows
    assert [row["warmup"] for row in rows] == [True, False, False]
    for name in ("psnr", "patches"):
        assert f"validation/{name}/violation_rate_upper" in rows[-1]
        assert rows[-1][f"tau/{name}"] > 0
    again = load_network(tmp_path / "run" / MODEL_FILE)
    assert isinstance(again, Lattice)
    assert all(torch.isfinite(value).all() for value in again.state_dict().values())


def test_a_run_is_not_continued_as_another(store: Store, tmp_path: Path) -> None:
    RECIPE_FILE.open(tmp_path, SMALL, resume=False)
    with pytest.raises(CheckpointError, match="--resume"):
        RECIPE_FILE.open(tmp_path, SMALL, resume=False)
    RECIPE_FILE.open(tmp_path, SMALL, resume=True)
    with pytest.raises(CheckpointError, match="floor"):
        RECIPE_FILE.open(tmp_path, replace(SMALL, floor=50.0), resume=True)
    with pytest.raises(DataError, match=r"size 32, .* 48"):
        train(store, replace(SMALL, size=48), tmp_path / "new", progress=False)
    with pytest.raises(DataError, match="batch of 64"):
        train(store, replace(SMALL, batch_size=64), tmp_path / "new", progress=False)


def test_a_longer_or_shorter_run_ends_at_the_same_tau() -> None:
    usual = SWIFT.tau * SWIFT.growth ** (SWIFT.rounds - 1)
    for steps in (400, 1000, 5000):
        recipe = SWIFT.with_length(steps=steps)
        assert recipe.steps_per_round is not None
        assert recipe.last_round * recipe.steps_per_round == steps
        assert recipe.message_rounds == SWIFT.message_rounds
        assert recipe.tau * recipe.growth ** (recipe.rounds - 1) == pytest.approx(usual)
    with pytest.raises(ConfigurationError, match="at least 200"):
        SWIFT.with_length(steps=150)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "swiftt"}, "one of .*hidden.*mean .swift."),
        ({"bits": 0}, "bits of at least 1"),
        ({"width": 0}, "width of at least 1"),
        ({"floor": 0.0}, "between 0 and 100 dB"),
        ({"rate": 0.0}, "rate"),
        ({"noise": "jpg(50)"}, "jpeg"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Recipe(**{"network": "swift", **changes})  # type: ignore[arg-type]


def test_a_network_comes_back_from_its_file(tmp_path: Path) -> None:
    network = make_network(SMALL).eval()
    save_network(tmp_path / "n.safetensors", network)
    again = load_network(tmp_path / "n.safetensors")
    images = torch.rand(1, 1, 32, 32)
    assert torch.equal(again.extract(images), network.extract(images))
    torn = (tmp_path / "n.safetensors").read_bytes()[:-10]
    (tmp_path / "torn.safetensors").write_bytes(torn)
    with pytest.raises(floormark.DataError, match=r"torn\.safetensors"):
        load_network(tmp_path / "torn.safetensors")
    save_state(tmp_path / "foreign.safetensors", {"model": {}})
    with pytest.raises(floormark.DataError, match="floormark-network"):
        load_network(tmp_path / "foreign.safetensors")
    with pytest.raises(floormark.DataError, match="swift"):
        floormark_network.load_network(tmp_path / "n.safetensors")  # the tool knows lattice alone


def test_tensorboard_shows_what_the_network_changes(store: Store, tmp_path: Path) -> None:
    logger = TensorBoardLogger(root_dir=tmp_path / "fit", name="tensorboard", version="")
    fabric = Fabric(accelerator="cpu", devices=1, loggers=logger)
    solution = train(store, SMALL, tmp_path, progress=False, fabric=fabric)
    reader = EventAccumulator(str(next(tmp_path.rglob("events.*"))))
    reader.Reload()
    name, train_name = reader.Tags()["images"]
    assert (name, train_name) == ("validation/original, marked, change x 20", "train/original, marked, change x 20")
    shown = torch.from_numpy(np.array(Image.open(BytesIO(reader.Images(name)[-1].encoded_image_string)))).float()
    shown = shown[..., 0] if shown.ndim == 3 else shown
    originals, marked, change = shown.split(32)
    count = shown.shape[1] // 32
    rows = [store.names.index(picture) for picture in store.split.validation[:count]]
    assert torch.equal(originals, torch.from_numpy(np.concatenate(list(store.images[rows]), axis=1)).float())
    difference = (marked - originals) * 20 + 127.5
    torch.testing.assert_close(change, difference.clamp(0, 255), rtol=0, atol=1.0)
    assert solution.audits["validation"].means["psnr"] < 60  # something was changed
