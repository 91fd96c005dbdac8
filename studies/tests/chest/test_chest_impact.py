import json
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from floormark import Watermarker
from floormark.network import SHIPPED_FILE
from natural_images import natural_image
from picture_folders import save
from samplewise.errors import DataError
from small_chest import make_store
from studies.chest.densenet import Classifier, probabilities
from studies.chest.impact import (
    Diagnoses,
    Impact,
    Originals,
    diagnose_marked,
    diagnose_originals,
    evaluate_originals,
    evaluate_run,
)
from studies.chest.impact_output import TABLE_TWO, column_of, draw_impact, mean, table_text, write_table
from studies.pictures import PATHOLOGIES, Store, prepare
from studies.watermark.evaluation.shipped import payload_of
from studies.watermark.networks import Network, Swift, load_network
from studies.watermark.recipe import HIDDEN, SWIFT, Recipe
from studies.watermark.training import Run


class Brighter(Network):
    """Adds ``step`` grey levels everywhere; what it reads is never wrong."""

    def __init__(self, step: float) -> None:
        super().__init__(4, size=32, channels=1, width=1)
        self.step = step

    def embed(self, images: torch.Tensor, messages: torch.Tensor) -> torch.Tensor:
        self.messages = messages
        return images + self.step / 255

    def extract(self, images: torch.Tensor) -> torch.Tensor:
        return 2 * self.messages - 1


class Corners(Classifier):
    """Logits that can be computed by hand: ten times the mean of the upper left quarter, for all pathologies."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        half = images.shape[2] // 2
        return 10 * (images[:, 0, :half, :half].mean((1, 2)) - 0.5)[:, None].expand(-1, 14)


def run_of(recipe: Recipe = SWIFT, name: str = "c40") -> Run:
    return Run(Path(name), name, f"label of {name}", recipe, Brighter(1), {})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("chest"), patients=200)


@pytest.fixture(scope="module")
def originals(store: Store) -> Originals:
    classifier, data = Corners(32).eval(), store.select("test")
    diagnose = partial(diagnose_originals, classifier, data)
    return evaluate_originals(classifier, data, diagnose, fewest=5, resamples=300, seed=0)


def test_the_originals_are_scored_as_they_are(originals: Originals) -> None:
    by_name = dict(zip(PATHOLOGIES, originals.aurocs.intervals, strict=True))
    assert by_name["Cardiomegaly"].value == 1.0  # the bright corner that the classifier looks at
    assert 0.2 < by_name["Hernia"].value < 0.8
    assert [name for name, counts in zip(by_name, originals.counts, strict=True) if counts] == [
        "Cardiomegaly",
        "Effusion",
        "Hernia",
    ]


def test_what_is_looked_at_is_what_a_file_holds(originals: Originals) -> None:
    seen = diagnose_marked(Corners(32).eval(), Brighter(2.4), originals.data, batch_size=7)
    assert seen["psnr"] == pytest.approx(
        np.full(30, 20 * np.log10(255 / 2)), abs=1e-3
    )  # 2.4 grey levels are 2 in a file
    assert (seen["bit_error"] == 0).all()
    before = np.log(originals.probabilities / (1 - originals.probabilities))
    after = np.log(seen["probabilities"] / (1 - seen["probabilities"]))
    assert after - before == pytest.approx(np.full((30, 14), 10 * 2 / 255), abs=1e-4)


def test_a_lattice_is_looked_at_as_the_tool_ships_it(tmp_path: Path) -> None:
    marker = Watermarker.load()
    natural = [natural_image(height=128, width=128, seed=seed) for seed in range(2)]
    for number, pixels in enumerate((natural[0], marker.embed(natural[1], "first", psnr=38.0).image)):
        save(tmp_path / "data" / f"0000000{number}_000.png", pixels)
    data = prepare(tmp_path / "data", tmp_path / "store", size=128).select()
    seen = diagnose_marked(
        Corners(128).eval(), load_network(Path(str(resources.files("floormark") / SHIPPED_FILE))), data, floor=38.0
    )
    shipped = marker.embed(natural[0], payload_of(0, marker), psnr=38.0)
    assert seen["psnr"][0] == pytest.approx(shipped.certificate.fidelity.psnr, abs=1e-3)
    assert seen["bit_error"][0] == shipped.certificate.bit_errors / 255
    assert np.isnan(seen["psnr"][1])  # marked already: refused, and looked at as it is
    plain = probabilities(Corners(128).eval(), data)
    assert seen["probabilities"][1] == pytest.approx(plain[1], abs=1e-6)


def test_nothing_hidden_changes_nothing(originals: Originals) -> None:
    seen = diagnose_marked(Corners(32).eval(), Brighter(0.4), originals.data)
    found = evaluate_run(run_of(), originals, seen, bounds=(0.01,))
    assert found.mean_size == found.flipped == found.mean_change == 0.0
    assert found.within == {"0.01": 1.0}
    assert found.significant == ()
    assert found.satisfied == 1.0


def evaluated(originals: Originals, *, name: str = "c40", recipe: Recipe = SWIFT) -> tuple[Impact, Diagnoses]:
    rng = np.random.default_rng(0)
    logits = np.log(originals.probabilities / (1 - originals.probabilities))
    noisy = 1 / (1 + np.exp(-(logits + rng.normal(size=logits.shape))))
    psnr = np.linspace(39.5, 41.0, len(noisy))
    seen = {"probabilities": noisy, "psnr": psnr, "bit_error": np.full(len(noisy), 0.01)}
    return evaluate_run(run_of(recipe, name), originals, seen, bounds=(0.1, 1.0)), seen


def test_numbers_are_those_of_their_definitions(originals: Originals) -> None:
    found, seen = evaluated(originals)
    change = np.abs(seen["probabilities"] - originals.probabilities)
    for k, one in enumerate(found.differences):
        truth = originals.labels[:, k]
        if one.counts:
            after, before = (roc_auc_score(truth, p[:, k]) for p in (seen["probabilities"], originals.probabilities))
            assert one.auroc.value == pytest.approx(after - before)
            assert one.auroc.low <= one.auroc.value <= one.auroc.high
        assert one.mean_change == pytest.approx(change[:, k].mean())
    counted = [one.auroc.value for one in found.differences if one.counts]
    assert found.mean.value == pytest.approx(np.mean(counted))
    assert found.mean_size == pytest.approx(np.mean(np.abs(counted)))
    assert found.flipped == pytest.approx(((seen["probabilities"] >= 0.5) != (originals.probabilities >= 0.5)).mean())
    assert found.quantiles["1"] == pytest.approx(change.max())
    assert found.within == {"0.1": pytest.approx((change.max(1) <= 0.1).mean()), "1": 1.0}
    assert found.satisfied == pytest.approx((seen["psnr"] >= 40).mean())


def test_differences_are_paired(originals: Originals) -> None:
    # The same shift of every logit keeps the order, so each resample's difference is exactly zero.
    logits = np.log(originals.probabilities / (1 - originals.probabilities))
    seen = {"probabilities": 1 / (1 + np.exp(-(logits + 1))), "psnr": np.full(30, 40.0), "bit_error": np.zeros(30)}
    found = evaluate_run(run_of(), originals, seen, bounds=())
    assert (found.mean.low, found.mean.value, found.mean.high) == (0.0, 0.0, 0.0)
    assert found.mean_change > 0.05


def test_tables_report_and_figure(originals: Originals, tmp_path: Path) -> None:
    impacts = [evaluated(originals)[0], evaluated(originals, name="own")[0]]
    columns = {"c40": "floor40"}
    report = write_table(tmp_path, originals, impacts, columns, {"seed": 0})
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report).replace("NaN", "null"))
    assert [len(run["differences"]) for run in report["runs"]] == [14, 14]
    assert report["paper"]["Atelectasis"][report["paper_column"]["c40"]] == TABLE_TWO["Atelectasis"].floor40
    text = (tmp_path / "table.md").read_text()
    assert text == table_text(originals, impacts, columns) + "\n"
    assert "| Cardiomegaly" in text
    assert "Atelectasis, Infiltration" in text
    paths = draw_impact(tmp_path, impacts)
    assert [path.name for path in paths] == ["impact.png", "impact.svg"]
    assert all(path.stat().st_size > 5_000 for path in paths)


def test_what_cannot_be_compared_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1000 positives"):
        evaluate_originals(Corners(32), store.select("test"), dict, fewest=1000, resamples=100, seed=0)
    odd = make_store(tmp_path, patients=6, size=36)
    with pytest.raises(DataError, match="36"):
        diagnose_marked(Corners(32), Swift(4, size=40, width=8), odd.select())


def test_the_papers_table_is_whole() -> None:
    assert len(TABLE_TWO) == 14
    assert mean("base") == pytest.approx(0.811, abs=5e-4)  # "0.81 on average"
    assert mean("hidden") == pytest.approx(-0.0874, abs=5e-5)
    assert column_of(HIDDEN) == "floor40"
    assert column_of(replace(HIDDEN, floor=45.0)) is None
    assert column_of(replace(HIDDEN, image_loss=0.7)) == "hidden"
    assert column_of(replace(HIDDEN, diagnosis=0.02)) is None
    assert column_of(SWIFT) is None
