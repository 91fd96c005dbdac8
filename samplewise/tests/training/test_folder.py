import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import samplewise as sw
from samplewise.storage.checkpoint import load_state
from small import fit, make_data, make_problem, same_weights

LEFT = {"audit.json", "audit.safetensors", "best.safetensors", "best-method.safetensors"}
"""What a folder holds of the selected model."""


def run(folder: Path, epochs: int) -> sw.Solution:
    audited = {"train": make_data(), "test": make_data(seed=1)}
    return fit(kind="lagrangian", epochs=epochs, audit_on=audited, checkpoint=folder)


def test_a_run_leaves_what_holds_for_its_selected_model(tmp_path: Path) -> None:
    solution = run(tmp_path / "whole", 6)
    kept = json.loads((tmp_path / "whole" / "audit.json").read_text())
    assert kept["selected"] == solution.selected.to_dict()
    again = sw.audit(make_problem(), solution.model, make_data(seed=1))
    assert kept["splits"]["test"]["satisfied"] == again.satisfied
    assert kept["splits"]["test"]["constraints"] == again.to_dict()["constraints"]
    values = load_file(tmp_path / "whole" / "audit.safetensors")
    assert torch.equal(values["test/reconstruction"], again.measures["reconstruction"])
    train = sw.audit(make_problem(), solution.model, make_data())["reconstruction"]
    expected = solution.method.multipliers("reconstruction", train.constraint.g(train.values), torch.arange(200))
    torch.testing.assert_close(values["multipliers/reconstruction"], expected)


def test_the_method_of_the_selected_models_moment_is_kept_with_it(tmp_path: Path) -> None:
    method = sw.SequentialPenalty(make_problem().constraints, schedule=sw.Geometric(1.0, growth=2.0))
    select = sw.Validation(select="objective")  # which tau then spoils
    solution = fit(method=method, epochs=6, audit_on={"train": make_data()}, validation=select, checkpoint=tmp_path)
    epoch = solution.selected.epoch
    assert epoch < 6, "else there is nothing to tell apart"
    assert solution.method is method
    assert method.tau == 2.0**epoch
    kept = load_state(tmp_path / "best-method.safetensors")
    assert {name: value.tolist() for name, value in kept.items()} == {
        name: value.tolist() for name, value in solution.method.state_dict().items()
    }


def test_a_resumed_run_leaves_the_same(tmp_path: Path) -> None:
    run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 3)
    run(tmp_path / "parts", 4)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert (whole / "audit.json").read_text() == (parts / "audit.json").read_text()
    for name in LEFT - {"audit.json"}:
        torch.testing.assert_close(load_file(whole / name), load_file(parts / name), rtol=0, atol=0)


def test_a_best_model_that_was_lost_is_chosen_anew_with_a_warning(tmp_path: Path) -> None:
    first = run(tmp_path, 4)
    for name in LEFT:
        (tmp_path / name).unlink()
    with pytest.warns(UserWarning, match="choosing anew"):
        again = run(tmp_path, 4)
    assert again.selected.epoch == 4
    assert same_weights(again.model, first.model) == (first.selected.epoch == 4)
    assert {path.name for path in tmp_path.iterdir()} >= LEFT
