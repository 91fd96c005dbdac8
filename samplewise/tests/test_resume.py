"""Runs that are killed, torn or changed, as real processes with real files."""

import json
import math
import random
import shutil
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file

import samplewise as sw
import small
from forked import Forked, processes, two_processes
from run_small import train, train_and_be_killed
from samplewise.errors import CheckpointError
from samplewise.storage.checkpoint import load_state
from samplewise.storage.disk import alone
from small import make_data, make_method, make_model, make_problem, same_weights


def in_two(folder: Path, kind: str, **options: Any) -> list[dict[str, Any]]:
    """Train in two processes together; what each ends with."""
    return two_processes(partial(train, devices=2, **options), folder, kind)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def filled(row: dict[str, Any]) -> dict[str, Any]:
    """With a number, if not one that is, where a row has none."""
    return {name: math.nan if value is None else value for name, value in row.items()}


def newest(folder: Path) -> Path:
    """The last checkpoint."""
    return max(folder.glob("checkpoints/*.safetensors"))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sequential", {}),
        ("lagrangian", {}),
        ("sequential", {"average": 0.9, "norm": True}),
        ("sequential", {"share": 0.3}),
    ],
)
def test_killed_at_any_moment_a_run_ends_with_the_same_weights(
    tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    expected = train(tmp_path / "whole", method, **options)
    moments, kills = random.Random(method), 0
    for number in range(3):
        when: dict[str, Any] = {"saves": moments.randint(1, 6), "seconds": moments.uniform(0.001, 0.03)}
        work = partial(train_and_be_killed, **when, **options)
        code, _, err = Forked(work, tmp_path / "killed", method, told=tmp_path / f"told{number}").finish()
        assert code in (0, -signal.SIGPROF), err
        kills += code == -signal.SIGPROF
        if code == 0:
            break
    found = train(tmp_path / "killed", method, **options)
    assert kills >= 1
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("method", "options"),
    [("sequential", {}), ("lagrangian", {}), ("sequential", {"average": 0.9}), ("sequential", {"share": 0.3})],
)
def test_two_processes_end_where_one_does(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    alone = train(tmp_path / "one", method, dropout=0.0, **options)
    first, second = in_two(tmp_path / "two", method, dropout=0.0, **options)
    assert first["promised"] == second["promised"] == alone["promised"]
    for key in ("model", "shipped"):
        torch.testing.assert_close(first[key], alone[key], rtol=1e-4, atol=1e-5)
    # What a promise caps the first tau by has one ratio of gradients for each process.
    states = [
        {key: value for key, value in each["method"].items() if not (each["promised"] and "initial" in key)}
        for each in (first, alone)
    ]
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)
    for key in ("model", "method", "shipped"):
        assert_same(first[key], second[key])
    assert first["samples"] == alone["samples"] == 51, "each sample is counted once"
    assert torch.equal(first["violators"], alone["violators"])
    for ours, theirs in zip(first["history"], alone["history"], strict=True):
        assert filled(ours) == pytest.approx(filled(theirs), rel=1e-3, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("average", [None, 0.9])
def test_two_processes_audit_one_model_even_with_running_statistics(tmp_path: Path, average: float | None) -> None:
    first, second = in_two(tmp_path / "run", "sequential", norm=True, batch=40, epochs=2, average=average)
    for key in ("model", "shipped"):
        assert_same(first[key], second[key])
    model = make_model(norm=True)
    model.load_state_dict(first["shipped"])
    alone = sw.audit(make_problem(), model, make_data(51, seed=1))
    assert alone.objective == pytest.approx(first["history"][first["selected"] - 1]["test/objective"], rel=1e-6)


def test_two_processes_resume_within_an_epoch(tmp_path: Path) -> None:
    whole = in_two(tmp_path / "whole", "lagrangian")
    in_two(tmp_path / "parts", "lagrangian", epochs=3)
    folder = tmp_path / "parts" / "checkpoints"
    max(folder.iterdir()).unlink()  # what is left was written in the middle of an epoch
    assert load_state(max(folder.iterdir()))["run"]["step"] > 0
    parts = in_two(tmp_path / "parts", "lagrangian")
    for found, expected in zip(parts, whole, strict=True):
        assert_same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(1, 2, 3, 4), (4, 3, 2, 1), (3, 1, 4, 2)])
def test_a_run_goes_on_in_other_numbers_of_processes_within_an_epoch(tmp_path: Path, counts: tuple[int, ...]) -> None:
    expected = train(tmp_path / "one", "lagrangian", dropout=0.0, epochs=5)
    folder = tmp_path / "several"
    for epochs, count in enumerate(counts, 2):
        work = partial(train, devices=count, dropout=0.0, epochs=epochs)
        found = processes(count, work, folder, "lagrangian")[0]
        if count != counts[-1]:
            max((folder / "checkpoints").iterdir()).unlink()  # what is left was written in the middle of an epoch
            assert load_state(max((folder / "checkpoints").iterdir()))["run"]["step"] > 0
    torch.testing.assert_close(found["model"], expected["model"], rtol=1e-4, atol=1e-5)
    # A multiplier moves whenever its sample is seen, so that one left out, or seen twice, would show.
    torch.testing.assert_close(found["method"], expected["method"], rtol=1e-3, atol=1e-4)


def fit(
    folder: Path, *, samples: int = 200, kind: str = "sequential", epochs: int = 2, rate: float = 1e-3, **options: Any
) -> sw.Solution:
    given: dict[str, Any] = {"method": make_method(kind, samples), "batch_size": 32} | options
    return small.fit(data=make_data(samples), rate=rate, epochs=epochs, checkpoint=folder, **given)


def test_a_finished_run_returns_at_once_and_can_be_made_longer(tmp_path: Path) -> None:
    first = fit(tmp_path)
    again = fit(tmp_path)
    assert again.history.rows == first.history.rows
    assert again.audits["train"].objective == first.audits["train"].objective
    assert [row["epoch"] for row in fit(tmp_path, epochs=4).history.rows] == [1, 2, 3, 4]


def test_a_run_that_is_made_shorter_still_ends_with_an_audit(tmp_path: Path) -> None:
    fit(tmp_path, epochs=3, checkpoint_steps=7)
    max((tmp_path / "checkpoints").iterdir()).unlink()  # as if killed before its last audit
    assert fit(tmp_path, epochs=2, checkpoint_steps=7).audits["train"].samples == 200


def test_a_torn_last_checkpoint_costs_time_but_not_the_result(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", epochs=4, audit_on={"train": make_data()})
    fit(tmp_path / "torn", epochs=3, audit_on={"train": make_data()})
    newest = max((tmp_path / "torn" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="using the one before it"):
        resumed = fit(tmp_path / "torn", epochs=4, audit_on={"train": make_data()})
    assert same_weights(resumed.model, whole.model)
    assert [row["train/objective"] for row in resumed.history.rows] == whole.history.column("train/objective")


def test_a_checkpoint_too_many_that_a_kill_left_is_removed(tmp_path: Path) -> None:
    fit(tmp_path)
    folder = tmp_path / "checkpoints"
    expected = sorted(folder.iterdir())
    shutil.copy(expected[0], folder / "step-000000000000.safetensors")  # as if killed before it was removed
    fit(tmp_path)
    assert sorted(folder.iterdir()) == expected


def test_a_data_set_of_another_length_is_refused(tmp_path: Path) -> None:
    fit(tmp_path)
    with pytest.raises(CheckpointError, match=r"samples = 200, not 150"):
        fit(tmp_path, samples=150)


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "unconstrained"}, "method"),
    ({"seed": 1}, "seed"),
    ({"clip_norm": 1.0}, "clip_norm"),
    ({"average": 0.9}, "average"),
    ({"rate": 0.5}, "optimizer"),
    ({"audit_on": {"train": make_data(100)}}, "audited"),
]


@pytest.mark.parametrize(("options", "message"), OTHERS)
def test_the_folder_of_another_run_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    fit(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=f"{message} ="):
        fit(tmp_path, **options)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


class Power(sw.Penalty):
    """A penalty of the user's own, a plain class."""

    def __init__(self, power: float) -> None:
        self.power = power

    def value(self, g: torch.Tensor) -> torch.Tensor:
        return g.clamp_min(0) ** self.power

    def slope(self, g: torch.Tensor) -> torch.Tensor:
        return self.power * g.clamp_min(0) ** (self.power - 1)


def test_a_run_with_a_penalty_of_ones_own_goes_on_and_one_of_another_state_is_refused(tmp_path: Path) -> None:
    def method(power: float) -> sw.Method:
        return sw.SequentialPenalty(make_problem().constraints, penalty=Power(power), schedule=sw.Constant(1.0))

    fit(tmp_path, method=method(3.0))
    assert len(fit(tmp_path, method=method(3.0), epochs=3).history.rows) == 3
    with pytest.raises(CheckpointError, match="method ="):
        fit(tmp_path, method=method(2.0), epochs=3)


def test_going_back_to_an_older_checkpoint_does_not_take_a_later_epochs_model(tmp_path: Path) -> None:
    """The newest checkpoint is torn, and the best model in the folder is of its epoch."""
    options: dict[str, Any] = {
        "audit_on": {"train": make_data()},
        "validation": sw.Validation(select="objective"),
        "rate": 1e-2,
    }
    whole = fit(tmp_path / "whole", epochs=4, **options)
    assert fit(tmp_path / "torn", epochs=3, **options).selected.epoch == 3
    tear(newest(tmp_path / "torn"))
    shutil.copytree(tmp_path / "torn", tmp_path / "other")
    with pytest.warns(UserWarning, match="using the one before it"):
        resumed = fit(tmp_path / "torn", epochs=4, **options)
    assert resumed.selected == whole.selected
    assert same_weights(resumed.model, whole.model)
    before, lost = (pytest.warns(UserWarning, match=match) for match in ("using the one before", "is lost"))
    with before, lost:  # it ends before epoch 3 comes again
        shorter = fit(tmp_path / "other", epochs=2, **options)
    assert shorter.selected.epoch == 2
    assert shorter.audits["train"].objective == shorter.history.rows[1]["train/objective"]


def tear(path: Path | None) -> None:
    assert path is not None
    path.write_bytes(path.read_bytes()[:-100])


def each_in_its_own(folders: list[Path]) -> dict[str, Any]:
    """Go on to four epochs in a folder of this process's own: what it ends with, or the error."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = fit(folders[fabric.global_rank], epochs=4, audit_on={"train": make_data()}, fabric=fabric)
    except CheckpointError as error:
        return {"error": str(error)}
    rows = found.history.column("train/objective")
    return {"model": dict(found.model.state_dict()), "rows": rows, "told": [str(each.message) for each in told]}


def test_processes_that_do_not_find_the_same_checkpoints_agree_on_one_or_all_say_so(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    before = fit(folders[0], epochs=3, audit_on={"train": make_data()}).history.column("train/objective")
    shutil.copytree(folders[0], folders[1])
    tear(newest(folders[1]))
    first, second = two_processes(each_in_its_own, folders)
    assert_same(first["model"], second["model"])
    for each in (first, second):
        assert any("using the one before it" in text for text in each["told"])
        assert each["rows"][:2] == before[:2], "they went on from the second epoch"
        assert each["rows"] == first["rows"]
        assert len(each["rows"]) == 4
    shutil.rmtree(folders[1])
    for each in two_processes(each_in_its_own, folders):
        assert "by every process" in each["error"]


def test_a_second_process_is_kept_out_of_a_run(tmp_path: Path) -> None:
    fit(tmp_path)
    before = (tmp_path / "history.csv").read_bytes()
    with alone(tmp_path, "run"), pytest.raises(CheckpointError, match="another process"):
        fit(tmp_path, epochs=3)
    assert (tmp_path / "history.csv").read_bytes() == before
    fit(tmp_path, epochs=3)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "best.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"no run\.json"):
        fit(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        fit(tmp_path)


def test_the_best_model_stands_beside_the_last_checkpoints(tmp_path: Path) -> None:
    solution = fit(tmp_path, epochs=6, kind="unconstrained", audit_on={"train": make_data()})
    torch.testing.assert_close(load_file(tmp_path / "best.safetensors"), dict(solution.model.state_dict()))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert json.loads((tmp_path / "run.json").read_text())["provenance"]["versions"]["torch"]
    again = fit(tmp_path, epochs=6, kind="unconstrained", audit_on={"train": make_data()})
    assert same_weights(again.model, solution.model)
