import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

import samplewise as sw
from samplewise.audits.audit import violation_rate_upper
from samplewise.cli.report import read_reports
from samplewise.errors import DataError
from samplewise.report.fits import keep_certificate, read_curves, read_forecasts
from samplewise.report.page import make_page
from samplewise.report.run import Multipliers, Requirement, RunReport
from samplewise.report.words import facts, verdict
from small import BOUND, fit, make_data, make_model, make_problem
from small_fit import small_fit


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, sw.Solution]:
    folder = tmp_path_factory.mktemp("runs") / "fitted"
    solution, _ = small_fit(folder, "lagrangian")
    return folder, solution


def read_one(folder: Path) -> RunReport:
    (run,) = read_reports([folder])
    return run


def test_a_run_of_fit_is_read_whole(fitted: tuple[Path, sw.Solution]) -> None:
    folder, solution = fitted
    run = read_one(folder)
    assert (run.name, run.selected_epoch) == ("fitted", solution.selected.epoch)
    assert [(each.name, each.upper, each.lower) for each in run.requirements] == [("reconstruction", BOUND, None)]
    test = sw.audit(make_problem(), solution.model, make_data(51, seed=1))
    train, unseen = run.splits
    assert (train.trained_on, unseen.trained_on) == (True, False)
    assert (unseen.satisfied, unseen.samples) == (test.satisfied, 51)
    assert unseen.objective == pytest.approx(test.objective)  # by batches of another size
    assert unseen.at_least == 1 - violation_rate_upper(test["reconstruction"].violated, 51, 0.95)
    found = unseen.constraints["reconstruction"]
    assert np.array(found.violators) == pytest.approx(np.array(test["reconstruction"].worst_violators(20)))
    curves = {(curve.title, curve.split): curve for curve in run.curves}
    assert curves["Objective", "test"].values == tuple(solution.history.column("test/objective"))
    assert curves["τ", ""].epochs == (1.0, 2.0, 3.0)
    assert {spread.measure for spread in run.distributions} == {"reconstruction", "accuracy"}
    assert run.multipliers[0].total == 200
    assert run.certificate is None
    assert run.settings["epochs so far"] == 3


def test_a_folder_as_fit_is_described_to_leave_it_is_read(tmp_path: Path) -> None:
    """A folder made by hand: what a report asks of one, whatever writes it."""
    asked = {"samples": 3, "constraints": ["AtMost(error, 0.5)"], "method": {"type": "FixedPenalty"}, "model": {}}
    (tmp_path / "run.json").write_text(json.dumps({"asked": asked, "provenance": {}}))
    (tmp_path / "history.jsonl").write_text('{"epoch": 1, "tau/error": 1.0, "a/b/satisfied": 0.5}\n' * 3)
    numbers = {"violated": 1, "satisfied": 0.5, "mean_violation": 0.1, "worst": 0.2, "confidence": 0.99}
    part = {"samples": 2, "objective": 1.0, "satisfied": 0.5, "means": {"error": 0.5, "pair": None}}
    part |= {"constraints": {"error": numbers}, "violators": {"error": [[1, 0.2]]}}
    bound = {"measure": "error", "formula": "error <= 0.5", "scale": 1.0, "margin": 0.0, "lower": None, "upper": 0.5}
    audit = {
        "format": "samplewise-audit-2",
        "selected": {"epoch": 1, "split": "a/b", "reason": "epoch 1"},
        "trained_on": "train",
        "constraints": {"error": bound},
        "splits": {"train": {**part, "samples": 3, "satisfied": 1.0}, "a/b": part, "a": part},
    }
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    values: dict[str, NDArray[Any]] = {
        "train/error": np.array([0.1, 0.2, 0.3], dtype=np.float32),
        "train/pair": np.zeros((3, 2)),
        "a/b/error": np.array([0.4, 0.7], dtype=np.float32),
        "a/b/pair": np.array([[0.0, 1.0], [np.inf, 1.0]]),
        "a/error": np.array([0.5, 0.5], dtype=np.float32),
        "a/pair": np.ones((2, 2)),
        "multipliers/error": np.array([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]], dtype=np.float32),
    }
    save_file(values, tmp_path / "audit.safetensors")
    run = read_one(tmp_path)
    error, pair = run.distributions
    assert (error.measure, pair.measure) == ("error", "pair")
    assert 0.5 in error.edges
    assert {split: sum(counts) for split, counts in error.counts.items()} == {"train": 3, "a/b": 2, "a": 2}
    assert {split: sum(counts) for split, counts in pair.counts.items()} == {"train": 6, "a/b": 3, "a": 4}
    assert run.multipliers == (Multipliers("error", 6, 2, (1, 2), (3.0, 2.0)),)
    assert {split.confidence for split in run.splits} == {0.99}
    assert [split.n_comparisons for split in run.splits] == [math.inf, 3, 1], (
        "by the history, where the audit does not say"
    )
    said = {
        "train": part,
        "a/b": {**part, "n_comparisons": 8},
        "a": {**part, "n_comparisons": None},
    }  # it stopped before the eighth
    (tmp_path / "audit.json").write_text(json.dumps({**audit, "splits": said}))
    assert [split.n_comparisons for split in read_one(tmp_path).splits] == [math.inf, 8, math.inf]
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    (tmp_path / "audit.safetensors").unlink()  # a copy of the results without the values of every sample
    plain = read_one(tmp_path)
    assert (plain.distributions, plain.multipliers, plain.splits) == ((), (), run.splits)


def rows_of_rounds(count: int, per_round: int = 1) -> list[dict[str, Any]]:
    """The history of a run whose worst violation is 1 / (1 + tau), its last epoch of each round counts."""
    taus = [1.3 ** (k // per_round) for k in range(count * per_round)]
    ends = [(k + 1) % per_round == 0 for k in range(len(taus))]
    return [
        {"round": k // per_round, "warmup": False, "tau/x": tau, "running/x/worst": 1 / (1 + tau) if end else 9.0}
        for k, (tau, end) in enumerate(zip(taus, ends, strict=True))
    ]


@pytest.mark.parametrize("per_round", [1, 2])
def test_what_is_foreseen_is_a_note(per_round: int) -> None:
    needed = [Requirement("x", "x", "x <= 1")]
    rows = rows_of_rounds(9, per_round)
    (note,) = read_forecasts(rows, {"type": "SequentialPenalty", "penalty": "Quadratic()"}, needed)
    assert note.startswith("Forecast for x: ")
    assert "tau of about 19," in note  # where 1 / (1 + tau) is a tenth of the first violation
    assert not list(read_forecasts(rows, {"type": "FixedPenalty"}, needed))
    assert not list(read_forecasts(rows[:3], {"type": "SequentialPenalty", "penalty": "Linear()"}, needed))


def test_a_long_run_has_its_forecast_unless_a_share_is_asked_for(tmp_path: Path) -> None:
    small_fit(tmp_path, epochs=9)
    audit = json.loads((tmp_path / "audit.json").read_text())
    assert any(note.startswith("Forecast for reconstruction: ") for note in read_one(tmp_path).notes)
    for part in audit["splits"].values():
        part["constraints"]["reconstruction"]["share"] = 0.9
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    assert not read_one(tmp_path).notes


def test_a_certificate_put_beside_the_run_is_shown_with_its_multipliers(tmp_path: Path) -> None:
    solution, method = small_fit(tmp_path / "run")
    certificate = sw.certify(make_problem(), solution.model, make_data(), method)
    keep_certificate(tmp_path / "run", certificate)
    run = read_one(tmp_path / "run")
    assert run.certificate is not None
    assert run.certificate.sentence == certificate.sentence
    assert run.certificate.facts["stationarity"] == certificate.stationarity
    multipliers = certificate.multipliers["reconstruction"]
    assert run.multipliers[0].values[0] == pytest.approx(float(multipliers.max()))
    assert run.multipliers[0].positive == int((multipliers > 0).sum())


def test_a_run_that_was_never_audited_shows_what_was_seen_while_training(tmp_path: Path) -> None:
    small_fit(tmp_path / "run")
    (tmp_path / "run" / "audit.json").unlink()
    run = read_one(tmp_path / "run")
    assert run.splits == ()
    assert "AtMost" in run.requirements[0].formula
    assert ("Share satisfied", "while training") in {(curve.title, curve.split) for curve in run.curves}


def test_a_promise_is_the_verdict_with_its_facts_and_margins(tmp_path: Path) -> None:
    model, problem = make_model(), make_problem()
    promises = {"kept": sw.Promise(0.02, make_data(60, seed=2), make_data(200, seed=3))}
    promises["missed"] = sw.Promise(0.9, make_data(60, seed=2), make_data(200, seed=3))
    for name, promise in promises.items():
        outcome = fit(problem, model, epochs=4, promise=promise, checkpoint=tmp_path / name).promise
        assert outcome is not None
        run = read_one(tmp_path / name)
        assert run.promise is not None
        assert run.promise.kept == outcome.kept == (name == "kept")
        asked = "2%" if name == "kept" else "90%"
        assert verdict(run) == f"Asked: reconstruction <= {BOUND:g}, for {asked} of unseen samples. {outcome.message}"
        shown = dict(facts(run.promise.facts))
        assert shown["samples that proved it"] == "200"
        assert (shown["confidence"], shown["kept"]) == ("95%", "yes" if outcome.kept else "no")
        assert shown["margin of reconstruction"] == f"{outcome.margins['reconstruction']:.5g}"
        assert shown["tau of reconstruction"] == f"{outcome.taus['reconstruction']:.5g}"
        instead = None if outcome.achievable_bounds is None else str(outcome.achievable_bounds["reconstruction"])
        assert shown.get("could be promised instead") == instead
        assert (instead is None) == outcome.kept
        assert {curve.title for curve in run.curves} >= {"τ", "Margin"}
        page = make_page([run])
        assert f'<p class="verdict {"holds" if outcome.kept else ""}">' in page
        assert "<h3>Promise</h3>" in page
        assert f"for at least {asked} of unseen samples" in page
    assert read_one(tmp_path / "kept").splits[0].trained_on, "tune_on steered, so it bounds nothing"


def test_what_a_search_for_feasible_weights_found_is_said_until_the_run_goes_on(tmp_path: Path) -> None:
    problem = make_problem()
    for epochs in (2, 3):
        options: dict[str, Any] = {"epochs": epochs, "explain_infeasibility": epochs == 2, "checkpoint": tmp_path}
        found = fit(method=sw.FixedPenalty(problem.constraints, 1e-9), rate=1e-4, **options).infeasibility
        run = read_one(tmp_path)
        assert (found is None) == (epochs == 3)
        assert run.infeasibility == ("" if found is None else str(found))
        assert ("A search for weights" in make_page([run])) == (epochs == 2)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other(path: Path) -> None:
    path.write_text('["something else"]')


def unlike(path: Path) -> None:
    path.write_text('{"sentence": "", "constraints": {}, "licq": {}, "multipliers": {"x": {"total": 1}}}')


def changed(**values: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("run.json", torn),
        ("run.json", other),
        ("run.json", changed(asked={})),
        ("run.json", changed(provenance=3)),
        ("audit.json", torn),
        ("audit.json", other),
        ("audit.json", changed(format="samplewise-audit-9")),
        ("audit.json", changed(splits={"train": {}})),
        ("audit.safetensors", torn),
        ("audit.safetensors", other),
        ("certificate.json", torn),
        ("certificate.json", unlike),
        ("promise.json", torn),
        ("promise.json", unlike),
        ("history.jsonl", other),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    fitted: tuple[Path, sw.Solution], tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    for path in (*fitted[0].glob("*.json*"), fitted[0] / "audit.safetensors"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if name in ("certificate.json", "promise.json"):
        (tmp_path / name).write_text("{}")
    if name == "history.jsonl":  # a last line without its end is only left out
        (tmp_path / name).write_text("{}\n" + "[1\n")
    else:
        harm(tmp_path / name)
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read_reports([tmp_path])


def test_a_folder_that_is_no_run_is_refused(fitted: tuple[Path, sw.Solution], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        read_reports([tmp_path / "nowhere"])
    with pytest.raises(DataError, match="holds no run"):
        read_reports([tmp_path])
    (tmp_path / "run.json").write_bytes((fitted[0] / "run.json").read_bytes())
    with pytest.raises(DataError, match="not ended an epoch"):
        read_reports([tmp_path])


def test_runs_of_several_folders_are_told_apart_by_their_folders(
    fitted: tuple[Path, sw.Solution], tmp_path: Path
) -> None:
    twin = tmp_path / "elsewhere" / "fitted"
    twin.mkdir(parents=True)
    for path in fitted[0].glob("*.json*"):
        (twin / path.name).write_bytes(path.read_bytes())
    names = [run.name for run in read_reports([fitted[0], twin])]
    assert names == [f"{fitted[0].parent.name}/fitted", "elsewhere/fitted"]


def test_one_tau_for_all_constraints_is_one_curve() -> None:
    row = {"epoch": 1, "tau/a": 2.0, "tau/b": 2.0, "test/satisfied": 0.5, "test/a/satisfied": 1.0, "lr": 0.1}
    titles = [curve.title for curve in read_curves([row], ["a", "b"])]
    assert titles == ["τ", "Share satisfied by all", "Share satisfied: a"]
    titles = [curve.title for curve in read_curves([{**row, "tau/b": 3.0}], ["a", "b"])]
    assert titles[:2] == ["τ: a", "τ: b"]
    assert [curve.title for curve in read_curves([{"epoch": 1, "tau/a": 0.0}], ["a"])] == []  # nothing was enforced
