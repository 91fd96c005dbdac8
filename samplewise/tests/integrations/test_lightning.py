"""Lightning's loop gives the numbers of the plain one, also with accumulation, validation and after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_fabric import Fabric
from plain import plain, row, same_state
from run_lightning import work
from small_lightning import Module, Recorder, Validated, loader, make_audits, trainer

import samplewise as sw
from forked import two_processes
from samplewise.audits.audit import violation_rate_upper
from samplewise.errors import ConfigurationError
from samplewise.integrations.lightning import Audits, Rounds
from small import fit, make_data, make_method, make_model, make_problem, same_weights

pytestmark = [
    # Lightning 2.6 asks torch 2.13 for a name that it is about to drop.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    # A few hundred samples in memory need no workers.
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
]


@pytest.mark.parametrize(("kind", "accumulate"), [("sequential", 1), ("sequential", 3), ("lagrangian", 2)])
def test_the_numbers_are_those_of_the_plain_loop(kind: str, accumulate: int, tmp_path: Path) -> None:
    rounds, method, model = plain(kind, steps=4 * -(-5 // accumulate), accumulate=accumulate)
    module, logged = Validated(kind), Recorder()
    run = trainer(tmp_path, Rounds(), epochs=4, logger=logged, accumulate_grad_batches=accumulate)
    run.fit(module, loader(), loader())
    assert same_weights(module.model, model)
    assert same_state(module.method, method)
    assert module.method.rounds == len(rounds) == 4
    for name in row(rounds[0]):
        assert logged.column(name) == pytest.approx([row(found)[name] for found in rounds])


def test_what_is_logged_has_the_names_of_a_history(tmp_path: Path) -> None:
    module, logged = Module(), Recorder()
    trainer(tmp_path, Rounds(), make_audits(), epochs=1, logger=logged).fit(module, loader())
    solution = fit(epochs=1, audit_on={"val": make_data(51, seed=1)})
    ours = {name for row in logged.rows for name in row} - {"epoch"}
    assert ours == set(solution.history.columns) - {"epoch", "round", "warmup", "lr", "seconds"}


def saved(moment: str, folder: Path) -> ModelCheckpoint:
    options: dict[str, Any] = {
        "batch": {"every_n_train_steps": 5},  # in an epoch of five, at its last batch
        "middle": {"every_n_train_steps": 3},
        "validation": {"save_on_train_epoch_end": False},
        "epoch": {"save_on_train_epoch_end": True},
    }
    return ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **options[moment])


# The resumed run writes no checkpoints of its own, which Lightning takes for a mistake.
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("kind", ["sequential", "lagrangian"])
@pytest.mark.parametrize("moment", ["middle", "batch", "validation", "epoch"])
def test_a_resumed_run_ends_as_one_that_went_through(moment: str, kind: str, tmp_path: Path) -> None:
    whole = Validated(kind)
    trainer(tmp_path, Rounds(), saved(moment, tmp_path), epochs=3).fit(whole, loader(), loader())
    for step in (3, 6) if moment == "middle" else (5, 10):  # in a round, or where tau stays, and where it grows
        resumed = Validated(kind)
        path = tmp_path / f"step={step}.ckpt"
        trainer(tmp_path, Rounds(), epochs=3).fit(resumed, loader(), loader(), ckpt_path=path, weights_only=True)
        assert same_weights(resumed.model, whole.model)
        assert same_state(resumed.method, whole.method)
        assert resumed.losses == whole.losses[step:]


def test_statistics_of_a_round_that_was_cut_in_an_epoch_are_in_the_checkpoint(tmp_path: Path) -> None:
    module = Module()
    trainer(tmp_path, Rounds(), saved("middle", tmp_path), epochs=1).fit(module, loader())
    state = torch.load(tmp_path / "step=3.ckpt", weights_only=True)["state_dict"]
    method = make_method("sequential")
    method.load_state_dict({key.removeprefix("method."): v for key, v in state.items() if key.startswith("method.")})
    assert method.rounds == 0
    assert method.summary().samples == 3 * 40


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, Rounds(), saved("epoch", tmp_path), epochs=1).fit(Module("sequential"), loader())
    module = Module("unconstrained")
    with pytest.raises(RuntimeError, match="SequentialPenalty over reconstruction"):
        trainer(tmp_path, Rounds(), epochs=2).fit(module, loader(), ckpt_path=tmp_path / "step=5.ckpt")


@pytest.mark.parametrize("validated", [True, False])
def test_the_best_model_is_the_one_with_the_best_audit(validated: bool, tmp_path: Path) -> None:
    module: Module = Validated() if validated else Module()
    audits, logged = make_audits(), Recorder()
    best = ModelCheckpoint(tmp_path, monitor="val/satisfied", mode="min")  # the least, which is not the last
    run = trainer(tmp_path, Rounds(), audits, best, epochs=4, logger=logged, num_sanity_val_steps=2)
    run.fit(module, loader(), loader() if validated else None)
    shares = logged.column("val/satisfied")
    assert len(shares) == 4
    assert min(shares) < shares[-1]
    again = sw.audit(make_problem(), module.model, make_data(51, 1))
    assert audits.latest["val"].satisfied == again.satisfied
    assert shares[-1] == pytest.approx(again.satisfied)
    expected = [violation_rate_upper(round(51 * (1 - s)), 51, 0.95, k * (k + 1)) for k, s in enumerate(shares, start=1)]
    assert logged.column("val/violation_rate_upper") == pytest.approx(expected), "whichever of them is chosen"
    kept = type(module).load_from_checkpoint(best.best_model_path)
    assert sw.audit(make_problem(), kept.model, make_data(51, 1)).satisfied == pytest.approx(min(shares))
    if validated:
        (metrics,) = run.validate(module, loader(), ckpt_path="best", verbose=False)
        assert metrics["val/satisfied"] == pytest.approx(min(shares))
        assert audits.latest["val"].n_comparisons == 5 * 6
    resumed = make_audits()
    resumed.load_state_dict(torch.load(best.best_model_path, weights_only=True)["callbacks"]["Audits"])
    assert resumed.made == 1 + shares.index(min(shares)), "a resumed run counts on"


@pytest.mark.parametrize(
    "objectives", [[1.0, 1.536, 1.198, 1.3], [1.0, 1.0 + 2e-9, 1.0 + 1e-9, 1.0 + 2e-9], [-7e5, 7e7, -7e6, 0.0]]
)
@pytest.mark.parametrize(
    ("monitored", "expected"),
    [({"monitor": "val/satisfied", "mode": "max"}, 1), ({"monitor": "val/selection_loss"}, 2)],
)
def test_of_epochs_that_are_all_satisfied_the_one_of_the_best_objective_is_kept(
    monitored: dict[str, Any], expected: int, objectives: list[float], tmp_path: Path
) -> None:
    errors = [1.0, 0.0, 0.0, 0.0]  # as found after each epoch, as are the objectives

    def evaluate(module: Any, batch: Any) -> Any:
        one = torch.ones(len(batch[0]), dtype=torch.float64)
        return objectives[module.current_epoch] * one, {"reconstruction": errors[module.current_epoch] * one}

    audits = Audits(sw.Problem(evaluate, make_problem().constraints), {"val": make_data(51, 1)})
    best = ModelCheckpoint(tmp_path, filename="{epoch}", **monitored)
    trainer(tmp_path, Rounds(), audits, best, epochs=4).fit(Module(), loader())
    assert Path(best.best_model_path).stem == f"epoch={expected}"


def test_in_mixed_precision_audits_are_those_of_fit(tmp_path: Path) -> None:
    audits, module = make_audits(), Module()
    trainer(tmp_path, Rounds(), audits, epochs=1, precision="bf16-mixed").fit(module, loader())
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    options: dict[str, Any] = {"rate": 0.0, "epochs": 1, "audit_on": {"val": make_data(51, 1)}}  # the weights stay
    solution = fit(None, module.model, fabric=fabric, **options)
    torch.testing.assert_close(audits.latest["val"].measures, solution.audits["val"].measures)
    with torch.autocast("cpu", torch.bfloat16):
        lower = sw.audit(make_problem(), module.model, make_data(51, 1))
    assert audits.latest["val"].objective != pytest.approx(lower.objective, rel=1e-6), "the precision is seen"


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_batches_are_audited_in_the_precision_of_the_weights(precision: Any, tmp_path: Path) -> None:
    audits, module = make_audits(), Module()
    trainer(tmp_path, Rounds(), audits, epochs=1, precision=precision).fit(module, loader())
    x, y = make_data(51, 1).tensors
    with torch.no_grad():
        objective, _ = module.evaluate([x.to(next(module.parameters()).dtype), y])
    assert audits.latest["val"].objective == pytest.approx(float(objective.double().mean()))


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a few trainings on two processes, and what each process ended with."""
    folder = tmp_path_factory.mktemp("processes")
    return folder, two_processes(work, folder)


@pytest.mark.parametrize("case", ["sequential", "lagrangian", "buffers", "resumed"])
def test_two_processes_end_where_one_does(case: str, processes: tuple[Path, list[dict[str, Any]]]) -> None:
    kind = "lagrangian" if case == "lagrangian" else "sequential"
    _, method, model = plain(kind, steps=12)
    folder, results = processes
    for result in results:
        torch.testing.assert_close(result[case]["model"], dict(model.state_dict()), rtol=1e-4, atol=1e-5)
        assert result[case]["samples"] == 51, "each sample is counted once"
    saved = torch.load(folder / case / "step=12.ckpt", weights_only=True)["state_dict"]
    whole = make_method(kind)
    whole.load_state_dict({key.removeprefix("method."): v for key, v in saved.items() if key.startswith("method.")})
    assert whole.summary().samples == 80, "the checkpoint has the statistics of both processes"
    assert row(whole.summary()) == pytest.approx(row(method.summary()), rel=1e-4)
    for key, table in method.state_dict().items():
        if "multipliers" in key:
            torch.testing.assert_close(whole.state_dict()[key], table, rtol=1e-3, atol=1e-4)


def test_two_processes_audit_one_model_even_with_running_statistics(
    processes: tuple[Path, list[dict[str, Any]]],
) -> None:
    first, second = (result["norm"] for result in processes[1])
    model = make_model(dropout=0.0, norm=True)
    model.load_state_dict(first["model"])
    expected = sw.audit(make_problem(), model, make_data(51, 1)).objective
    assert first["objective"] == second["objective"] == pytest.approx(expected, rel=1e-6)


class Without(Module):
    def __init__(self) -> None:
        super().__init__()
        del self.method


def test_what_is_wrong_is_said_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="found none"):
        trainer(tmp_path, Rounds(), epochs=1).fit(Without(), loader())
    two = Module()
    two.other = make_method("sequential")
    with pytest.raises(ConfigurationError, match=r"found \['method', 'other'\]"):
        trainer(tmp_path, Rounds(), epochs=1).fit(two, loader())
    with pytest.raises(ConfigurationError, match="expected data sets by name"):
        Audits(make_problem(), {})
