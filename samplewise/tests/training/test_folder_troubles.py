"""A run's folder that is busy, full, gone, or not as it was left: one clear error or warning, and nothing is lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import samplewise as sw
from samplewise.errors import CheckpointError, OutputError
from samplewise.storage.checkpoint import load_state, save_state
from samplewise.storage.disk import alone
from small import At, fit, make_data, make_method, make_model, same_weights


def run(folder: Path, *, epochs: int = 2, **options: Any) -> tuple[torch.nn.Module, sw.Solution]:
    audited = {"audit_on": {"train": make_data()}} | options
    solution = fit(kind="lagrangian", epochs=epochs, checkpoint=folder, **audited)
    return solution.model, solution


def snapshot(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_nothing_is_written_before_it_is_sure_that_no_other_run_is_at_work(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    run(old)
    for folder in (new, old):
        with alone(folder, "run"):
            before = snapshot(folder)
            for options in ({"seed": 1}, {"epochs": 3}, {"batch_size": 20, "method": make_method("sequential")}):
                with pytest.raises(CheckpointError, match="another process"):
                    run(folder, **options)
            assert snapshot(folder) == before
    assert [path.name for path in new.iterdir()] == [".lock"]
    run(new, seed=1)


class Usage(NamedTuple):
    """What ``shutil.disk_usage`` gives."""

    total: int
    used: int
    free: int


def test_a_resumed_run_asks_for_no_room_for_what_lies_there_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "begun")
    model = make_model()
    one = 3 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) + 4 * 200
    # Two checkpoints stay, and a third is there while it is written.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10 * one, 8 * one, 2 * one))
    run(tmp_path / "begun", epochs=3)
    with pytest.raises(OutputError, match="MB free"):
        run(tmp_path / "new")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10 * one, 10 * one - 100, 100))
    with pytest.raises(OutputError, match="MB free"):
        run(tmp_path / "begun", epochs=4)


def test_a_damaged_history_beside_a_good_checkpoint_costs_its_rows_only(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", epochs=4)
    run(tmp_path / "good", epochs=3)
    for damage in ("not json\n", "[3]\n", '{"no": "epoch"}\n', '{"epoch": "one"}\n', "\udcff\n"):
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "good", folder)
        (folder / "history.jsonl").write_text(damage, errors="surrogateescape")
        with pytest.warns(UserWarning, match="3 epochs"):
            model, solution = run(folder, epochs=4)
        assert same_weights(model, whole)
        assert solution.history.column("epoch") == [4]
        assert [json.loads(line)["epoch"] for line in (folder / "history.jsonl").read_text().splitlines()] == [4]
        shutil.rmtree(folder)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"asked"', "{}", '{"asked": 5}', '{"asked": null}', "{", "\x00"])
def test_a_description_of_a_wrong_kind_is_refused(tmp_path: Path, text: str) -> None:
    run(tmp_path)
    (tmp_path / "run.json").write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match=r"run\.json"):
        run(tmp_path, epochs=3)
    assert snapshot(tmp_path) == before


def other_weights(state: dict[str, Any]) -> None:
    state["model"]["classifier.weight"] = torch.zeros(3, 3)


def fewer_weights(state: dict[str, Any]) -> None:
    del state["model"]["classifier.weight"]


def other_moments(state: dict[str, Any]) -> None:
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)


def other_groups(state: dict[str, Any]) -> None:
    state["optimizer"]["param_groups"].append(state["optimizer"]["param_groups"][0])


def other_multipliers(state: dict[str, Any]) -> None:
    (name,) = (name for name in state["method"] if name.endswith("values"))
    state["method"][name] = torch.zeros(7)


def other_taus(state: dict[str, Any]) -> None:
    state["method"]["coefficients.taus"] = torch.zeros(2, dtype=torch.float64)


def other_state(state: dict[str, Any]) -> None:
    state["run"]["lap"] = 3


def no_state(state: dict[str, Any]) -> None:
    del state["run"]


def no_optimizer(state: dict[str, Any]) -> None:
    state["optimizer"] = None


@pytest.mark.parametrize(
    "change",
    [
        other_weights,
        fewer_weights,
        other_moments,
        other_groups,
        other_multipliers,
        other_taus,
        other_state,
        no_state,
        no_optimizer,
    ],
)
def test_a_checkpoint_that_is_whole_but_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    run(tmp_path)
    newest = max((tmp_path / "checkpoints").iterdir())
    state = load_state(newest)
    change(state)
    save_state(newest, state)  # with a digest that is right
    with pytest.raises(CheckpointError, match=newest.name) as found:
        run(tmp_path, epochs=3)
    assert "\n" not in str(found.value), "one line"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_run_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    whole, expected = run(tmp_path / "whole", epochs=4)
    rows, kept = tmp_path / "full" / "history.jsonl", tmp_path / "kept"

    def fill() -> None:
        rows.rename(kept)
        rows.symlink_to("/dev/full")

    with pytest.raises(OutputError, match="disk is full"):
        run(tmp_path / "full", epochs=4, auxiliary=At(10, fill))
    kept.replace(rows)
    model, solution = run(tmp_path / "full", epochs=4, auxiliary=At(-1, fill))
    assert same_weights(model, whole)
    assert solution.history.column("train/objective") == expected.history.column("train/objective")


@pytest.mark.parametrize("audited", [True, False])
@pytest.mark.parametrize("after", [1, 6], ids=["in the first epoch", "in the second"])
def test_a_folder_that_vanished_is_said_and_goes_on_where_it_is_found_again(
    tmp_path: Path, after: int, audited: bool
) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "moved"
    options: dict[str, Any] = {} if audited else {"audit_on": None}
    with pytest.raises(OutputError, match="folder is gone"):
        run(folder, epochs=4, auxiliary=At(after, lambda: folder.rename(elsewhere)), **options)
    whole, _ = run(tmp_path / "whole", epochs=4, auxiliary=At(-1, lambda: None), **options)
    model, _ = run(elsewhere, epochs=4, auxiliary=At(-1, lambda: None), **options)
    assert same_weights(model, whole)
