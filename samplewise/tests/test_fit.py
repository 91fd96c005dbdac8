from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import samplewise as sw
from samplewise.errors import ConfigurationError, DataError, MeasureError, NotFiniteError, OutputError
from samplewise.samples import source_of
from samplewise.stopping import GradientRule
from samplewise.training.batching import epoch_order
from small import (
    BOUND,
    At,
    Network,
    evaluate,
    fit,
    interrupt,
    make_data,
    make_method,
    make_model,
    make_problem,
    same_weights,
)


def run(
    *,
    model: nn.Module | None = None,
    data: Any = None,
    kind: str = "sequential",
    share: float = 1.0,
    **options: Any,
) -> tuple[nn.Module, sw.Solution]:
    given: dict[str, Any] = {"model": model or make_model(dropout=0.0), "batch_size": 32} | options
    solution = fit(data=data, kind=kind, share=share, **given)
    return solution.model, solution


def test_it_does_what_the_loop_written_by_hand_does() -> None:
    data, by_hand = make_data(), make_model(dropout=0.0)
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-2)
    x, y = data.tensors
    tau = 2.0
    for epoch in range(3):
        for index in torch.split(epoch_order(replace(source_of(data), shuffle=True), seed=5, epoch=epoch), 32):
            logits, decoded = by_hand(x[index])
            objective = functional.cross_entropy(logits, y[index], reduction="none")
            violation = torch.relu((decoded - x[index]).square().mean(1) - BOUND)
            optimizer.zero_grad()
            (objective + tau * violation).mean().backward()
            optimizer.step()
        tau = 2.0 * 1.1 ** ((epoch + 1) // 2)
    model, solution = run(seed=5)
    for expected, found in zip(by_hand.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    assert solution.history.column("tau/reconstruction") == pytest.approx([2.0, 2.0, 2.2])


def test_a_batch_size_beyond_all_samples_means_all_of_them() -> None:
    whole, _ = run(batch_size=200)
    for size in (201, 2**70):
        beyond, _ = run(batch_size=size, audit_on={"train": make_data()})
        assert same_weights(beyond, whole)


def test_a_loader_with_a_sampler_of_its_own_trains_where_audit_on_says_what_to_judge() -> None:
    loader = DataLoader(make_data(), batch_size=32, sampler=SubsetRandomSampler(range(50)))
    _, solution = run(data=loader, epochs=1, audit_on={"train": make_data()})
    assert solution.audits["train"].samples == 200


@pytest.mark.parametrize("kind", ["sequential", "lagrangian", "unconstrained"])
def test_micro_batches_change_nothing(kind: str) -> None:
    whole, _ = run(kind=kind)
    parts, _ = run(kind=kind, accumulate=3)  # 32 is no multiple of 3, and the last step has 8 samples
    for expected, found in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_loader_gives_what_its_data_set_gives() -> None:
    first, _ = run()
    second, _ = run(data=DataLoader(make_data(), batch_size=32, shuffle=True), batch_size=None)
    assert same_weights(first, second)


class ItemByItem(Dataset[Any]):
    """The same data, one sample at a time."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = make_data().tensors
        return x[i], y[i]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_set_gives_what_tensors_in_memory_give(workers: int) -> None:
    first, _ = run(epochs=2)
    second, _ = run(epochs=2, data=DataLoader(ItemByItem(), batch_size=32, shuffle=True, num_workers=workers))
    assert same_weights(first, second)


def test_a_schedule_keeps_tau_for_several_epochs() -> None:
    method = sw.SequentialPenalty(make_problem().constraints, schedule=sw.Geometric(1.0, growth=2.0, every=2))
    _, solution = run(method=method, epochs=5)
    assert solution.history.column("tau/reconstruction") == [1.0, 1.0, 2.0, 2.0, 4.0]


def test_a_rule_ends_a_round_when_the_gradient_is_small_or_time_is_up() -> None:
    method = sw.SequentialPenalty(make_problem().constraints, schedule=sw.Geometric(1.0, growth=2.0))
    strict = GradientRule(1e-9, max_epochs=3, batches=4, batch_size=50)
    _, solution = run(method=method, epochs=7, round_rule=strict)
    assert solution.history.column("round") == [0, 0, 0, 1, 1, 1, 2]
    assert solution.history.column("gradient/epsilon") == pytest.approx([1e-9] * 3 + [5e-10] * 3 + [2.5e-10])
    assert solution.history.column("gradient/norm")[2] is None, "the limit on epochs decided"
    _, solution = run(kind="sequential", epochs=3, round_rule=GradientRule(1e9))
    assert solution.history.column("round") == [0, 1, 2]


def test_warm_up_minimises_the_objective_alone() -> None:
    warmed, solution = run(epochs=1, warmup_epochs=2)
    alone, _ = run(kind="unconstrained", epochs=2)
    assert solution.history.column("warmup") == [True, True, False]
    assert solution.history.column("tau/reconstruction") == [0.0, 0.0, 2.0]
    only_warm = make_model(dropout=0.0)
    with pytest.raises(KeyboardInterrupt):
        run(model=only_warm, epochs=1, warmup_epochs=2, auxiliary=At(14, interrupt))
    assert same_weights(only_warm, alone)
    assert not same_weights(warmed, alone)


class Doubling(At):
    """An auxiliary step that hands on another batch."""

    def step(self, model: nn.Module, batch: Any) -> Any:
        return batch[0] * 2, batch[1]


def test_an_auxiliary_step_may_hand_on_what_it_made() -> None:
    x, y = make_data().tensors
    first, _ = run(auxiliary=Doubling(-1, interrupt))
    second, _ = run(data=TensorDataset(x * 2, y))
    assert same_weights(first, second)


@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_the_learning_rate_follows_its_schedule(interval: str) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    _, solution = run(model=model, optimizer=optimizer, scheduler=(scheduler, interval))
    expected = [1.0, 0.5, 0.25] if interval == "epoch" else [0.5**7, 0.5**14, 0.5**21]
    assert solution.history.column("lr") == pytest.approx(expected)


def test_the_gradient_is_cut() -> None:
    model = make_model(dropout=0.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    run(model=model, epochs=1, batch_size=200, clip_norm=0.01, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    moved = torch.cat([(a.detach() - b).flatten() for a, b in zip(model.parameters(), before, strict=True)])
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_selected_epoch_is_the_most_feasible_one_and_its_model_is_given() -> None:
    train, test = make_data(), make_data(seed=1)
    model, solution = run(epochs=8, audit_on={"train": train, "test": test}, kind="unconstrained")
    shares = solution.history.column("train/satisfied")
    assert solution.selected.epoch == shares.index(max(shares)) + 1
    assert sw.audit(make_problem(), solution.model, train).satisfied == max(shares)
    assert solution.model is model
    assert solution.selected.epoch < 8, "else there is nothing to tell apart"
    assert solution.status is sw.Status.UNFINISHED
    assert solution.audits["test"].samples == 200
    assert "asked" in solution.status.message


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("epochs", [2, 8])
def test_what_a_solution_says_is_of_the_model_that_ships(tmp_path: Path, average: float | None, epochs: int) -> None:
    audited = {"train": make_data(), "test": make_data(seed=1)}
    options: dict[str, Any] = {"epochs": epochs, "kind": "unconstrained", "average": average}
    model, solution = run(audit_on=audited, checkpoint=tmp_path, **options)
    if epochs == 8:
        assert solution.selected.epoch < 8, "else there is nothing to tell apart"
    assert solution.model is model
    for name, data in audited.items():
        again = sw.audit(make_problem(), model, data)
        assert solution.audits[name].objective == pytest.approx(again.objective, rel=1e-6)
        assert solution.audits[name].violated == again.violated
    assert solution.audits[solution.selected.split].satisfied == solution.selected.satisfied
    other, complete = run(audit_on=audited, checkpoint=tmp_path, **options)
    assert same_weights(other, model)
    for name, found in solution.audits.items():
        assert torch.equal(found.objectives, complete.audits[name].objectives)
        torch.testing.assert_close(found.measures, complete.audits[name].measures, rtol=0, atol=0)
        assert found.n_comparisons == complete.audits[name].n_comparisons


def test_ctrl_c_says_that_the_same_call_goes_on_where_it_does(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as found:
        run(auxiliary=At(9, interrupt), checkpoint=tmp_path)
    assert "the same call goes on" in "".join(found.value.__notes__)
    with pytest.raises(KeyboardInterrupt) as found:
        run(auxiliary=At(9, interrupt))
    assert not hasattr(found.value, "__notes__")


def test_values_without_a_gradient_are_said_to_reach_no_model() -> None:
    def detached(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        objective, measures = evaluate(model, batch)
        return objective.detach(), {name: each.detach() for name, each in measures.items()}

    with pytest.raises(MeasureError, match="none reaches the model"):
        fit(sw.Problem(detached, make_problem().constraints), epochs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"audit_on": {"": make_data(seed=1)}}, "name"),
        ({"data": DataLoader(make_data(20), batch_size=32, drop_last=True)}, "drop_last"),
        (
            {"data": DataLoader(make_data(), 32, sampler=SubsetRandomSampler(range(9)), drop_last=True)}
            | {"audit_on": {"test": make_data(seed=1)}},
            "drop_last",
        ),
    ],
)
def test_what_would_do_nothing_in_silence_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(**options)


def test_a_sample_that_cannot_be_met_is_explained_and_a_run_that_was_too_short_is_told_from_it() -> None:
    torch.manual_seed(0)
    x = torch.rand(200, 3)

    def evaluate(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        error = model(batch[0]).squeeze(1) - batch[1]
        return error.square(), {"error": error.abs()}

    def short_run(y: Tensor) -> sw.Solution:
        problem, model = sw.Problem(evaluate, [sw.AtMost("error", 0.3)]), torch.nn.Linear(3, 1)
        method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(1.0))
        options: dict[str, Any] = {"rate": 1e-4, "epochs": 2, "explain_infeasibility": True}
        return fit(problem, model, TensorDataset(x, y), method=method, **options)

    y = x.sum(1)
    right = short_run(y)
    assert right.status is sw.Status.UNFINISHED
    assert right.infeasibility is not None
    assert not any(right.infeasibility.violators.values()), "longer runs would meet them all"
    y[0] += 5  # one bad label
    wrong = short_run(y)
    assert wrong.status is sw.Status.INFEASIBLE
    assert wrong.infeasibility is not None
    assert wrong.infeasibility.violators["error"][0][0] == 0
    again = sw.find_infeasibility(
        sw.Problem(evaluate, [sw.AtMost("error", 0.3)]), wrong.model, TensorDataset(x, y), batch_size=50
    )
    assert again == wrong.infeasibility


def test_nothing_is_searched_unasked_and_an_unmet_run_costs_what_a_met_one_does() -> None:
    passes = 0

    def counted(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal passes
        passes += len(batch[0])
        return evaluate(model, batch)

    def cost(share: float) -> tuple[sw.Solution, int]:
        nonlocal passes
        problem, passes = sw.Problem(counted, make_problem(share).constraints), 0
        return fit(problem, make_model(dropout=0.0), share=share, epochs=5), passes

    (met, expected), (unmet, found) = cost(0.01), cost(1.0)
    assert (met.status, unmet.status) == (sw.Status.FEASIBLE, sw.Status.UNFINISHED)
    assert unmet.infeasibility is None
    assert found == expected
    assert not [name for name in unmet.history.columns if name.startswith(("forecast/", "gradient/"))]


def test_evaluation_happens_every_n_epochs_and_at_the_end() -> None:
    _, solution = run(epochs=5, audit_on={"train": make_data()}, validation=sw.Validation(every=2))
    assert [row["epoch"] for row in solution.history.rows if "train/objective" in row] == [2, 4, 5]


def test_it_stops_when_the_constraints_hold_as_asked() -> None:
    _, solution = run(epochs=50, share=0.3, audit_on={"train": make_data()}, validation=sw.Validation(stop=True))
    assert solution.status is sw.Status.TARGET_REACHED
    assert len(solution.history.rows) < 50
    assert solution.selected.epoch == len(solution.history.rows)
    assert solution.selected.feasible


def test_warm_up_does_not_stop_a_run_and_the_last_epoch_is_no_early_stop() -> None:
    feasible = {"train": TensorDataset(torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64))}
    _, solution = run(epochs=1, warmup_epochs=2, audit_on=feasible, share=0.01, validation=sw.Validation(stop=True))
    assert len(solution.history.rows) == 3
    assert solution.status is sw.Status.FEASIBLE


def test_modules_keep_the_mode_they_were_given_in() -> None:
    model = make_model(dropout=0.5)
    model.encoder[2].eval()
    frozen, _ = run(model=model)
    without, _ = run(model=make_model(dropout=0.0))
    assert same_weights(frozen, without)
    assert not model.encoder[2].training


def test_values_that_are_not_finite_stop_the_run_and_name_the_sample() -> None:
    x, y = make_data().tensors
    x = x.clone()
    x[123, 0] = torch.nan
    with pytest.raises(NotFiniteError, match=r"sample index: 123\)"):
        run(data=TensorDataset(x, y))


def test_a_fabric_of_ones_own_sets_devices_and_precision() -> None:
    from lightning_fabric import Fabric

    plain, _ = run()
    mixed, _ = run(fabric=Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"))
    gap = max(float((a - b).detach().abs().max()) for a, b in zip(plain.parameters(), mixed.parameters(), strict=True))
    assert 0 < gap < 0.5
    assert isinstance(mixed, Network)
    assert next(mixed.parameters()).dtype == torch.float32


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_precisions_that_turn_the_weights_into_something_else_are_refused(precision: Any) -> None:
    from lightning_fabric import Fabric

    with pytest.raises(ConfigurationError, match=f"got {precision}"):
        run(fabric=Fabric(accelerator="cpu", devices=1, precision=precision))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"method": sw.Unconstrained([])}, ConfigurationError, "not the problem's"),
    ({"epochs": 0}, ConfigurationError, "epochs as a whole number >= 1"),
    ({"batch_size": 0}, ConfigurationError, "batch_size"),
    ({"accumulate": 0}, ConfigurationError, "accumulate"),
    ({"validation": {"every": 2}}, ConfigurationError, "validation"),
    ({"scheduler": (None, "round")}, ConfigurationError, r"scheduler=\(scheduler, 'step'\)"),
    ({"scheduler": "cosine"}, ConfigurationError, "scheduler made and ready"),
    ({"warmup_epochs": 0.5}, ConfigurationError, "warmup_epochs as a whole number >= 0"),
    ({"clip_norm": -1.0}, ConfigurationError, "clip_norm > 0"),
    ({"validation": sw.Validation(stop=True)}, ConfigurationError, "audit_on"),
    ({"validation": sw.Validation(patience=3)}, ConfigurationError, "audit_on"),
    ({"audit_on": make_data()}, ConfigurationError, "audit_on as data sets by name"),
    ({"audit_on": {"test": TensorDataset(torch.zeros(3, 4), torch.zeros(3))}}, RuntimeError, "shapes"),
    ({"data": (torch.zeros(3, 10), torch.zeros(3))}, DataError, "TensorDataset"),
    ({"optimizer": torch.optim.Adam}, ConfigurationError, "optimizer made and ready, a .*Optimizer"),
    ({"method": make_method("lagrangian", samples=40)}, ConfigurationError, "40"),
    ({"data": TensorDataset(torch.zeros(0, 10))}, DataError, "empty"),
    ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))])}, ConfigurationError, "none of the model's"),
    ({"data": DataLoader(make_data(), batch_size=16)}, ConfigurationError, "give one of them"),
    (
        {"data": DataLoader(make_data(), batch_size=32, sampler=SubsetRandomSampler(range(50)))},
        ConfigurationError,
        r"SubsetRandomSampler: give audit_on=\{'train': dataset\}",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_what_cannot_be_right_is_said_before_anything_starts(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        run(**options, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def broadcast(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = batch
    scores, _ = model(x)
    return functional.cross_entropy(scores, y, reduction="none"), {"reconstruction": (scores[:, :1] - y).abs()}


def test_the_usual_slip_of_broadcasting_is_said_and_no_measure_of_two_values_is_taken_for_it() -> None:
    problem = sw.Problem(broadcast, make_problem().constraints)
    model = make_model()
    options: dict[str, Any] = {"optimizer": torch.optim.Adam(model.parameters()), "epochs": 1, "batch_size": 50}
    with pytest.raises(MeasureError, match=r"'reconstruction' .*squeeze"):
        sw.fit(problem, model, make_data(), method=make_method("sequential"), **options)

    def two(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        scores, _ = model(batch[0])
        return functional.cross_entropy(scores, batch[1], reduction="none"), {"reconstruction": scores.abs()}

    sw.fit(sw.Problem(two, problem.constraints), model, make_data(), method=make_method("sequential"), **options)


def test_a_folder_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model = make_model()
    before = make_model()
    with pytest.raises(OutputError, match="cannot write"):
        run(model=model, checkpoint=tmp_path / "file")
    assert same_weights(model, before)
