"""Weights that are sharded over processes (torch's fully_shard): the run of one process, to rounding."""

import random
import signal
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.fsdp import FSDPStrategy
from safetensors.torch import load_file

import samplewise as sw
from forked import SECONDS, processes, start
from run_small import train, train_and_be_killed
from samplewise.errors import ConfigurationError
from samplewise.stopping import GradientRule
from small import fit, make_data, make_model, make_problem

PLAIN: dict[str, Any] = {"dropout": 0.0, "checkpoint_steps": None}


def shared_out(count: int, folder: Path, kind: str = "sequential", **options: Any) -> list[dict[str, Any]]:
    """Train so, in so many processes; what each ends with."""
    work = partial(train, devices=count, sharded=True, **{**PLAIN, **options})
    return processes(count, work, folder, kind)


def assert_close(found: dict[str, Any], expected: dict[str, Any], *, both: bool = True) -> None:
    """Equal but for the order of sums. Not ``both`` models, if the one given to fit has the selected weights."""
    for key in ("model", "shipped") if both else ("shipped",):
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["method"], expected["method"], rtol=1e-3, atol=1e-4)
    assert found["selected"] == expected["selected"]
    assert torch.equal(found["violators"], expected["violators"])
    for ours, theirs in zip(found["history"], expected["history"], strict=True):
        ours, theirs = ({key: 0.0 if row[key] is None else row[key] for key in row} for row in (ours, theirs))
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def test_two_processes_end_where_one_does_and_one_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"average": 0.9, "epochs": 1, "warmup_epochs": 0}
    expected = train(tmp_path / "one", "sequential", **PLAIN, **options)
    first, second = shared_out(2, tmp_path / "two", **options)
    assert_close(first, expected)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    last = max((tmp_path / "two" / "checkpoints").glob("*.safetensors"))
    assert len(list(last.with_suffix(".parts").iterdir())) == 2, "each process writes its own part"
    longer = {**PLAIN, **options, "epochs": 2}
    assert_close(train(tmp_path / "two", "sequential", **longer), train(tmp_path / "one", "sequential", **longer))


def test_the_fsdp_that_was_never_run_is_refused() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric._strategy = FSDPStrategy()
    with pytest.raises(ConfigurationError, match="fully_shard"):
        fit(fabric=fabric)


@pytest.mark.slow
def test_an_average_of_a_model_that_is_sharded_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="average="):
        shared_out(2, tmp_path, average=0.9, optimizer_last=True)


@pytest.mark.slow
def test_a_run_goes_on_in_two_then_four_processes_then_one(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole", "sequential", average=0.9, **PLAIN)
    folder = tmp_path / "run"
    shared_out(2, folder, average=0.9, epochs=2)
    shared_out(4, folder, average=0.9, epochs=4)
    assert len(list(max((folder / "checkpoints").glob("*.parts")).iterdir())) == 4
    assert_close(train(folder, "sequential", average=0.9, **PLAIN), expected)
    model = make_model()
    model.load_state_dict(load_file(folder / "best.safetensors"))
    torch.testing.assert_close(dict(model.state_dict()), expected["shipped"], rtol=1e-4, atol=1e-5)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "multipliers": ("lagrangian", {}),
    "the first tau found": ("auto", {"warmup_epochs": 0}),
    "a certificate": ("sequential", {"certified": True, "average": 0.9}),
    "optimiser made after": ("sequential", {"optimizer_last": True}),
    "micro-batches and clipping": ("sequential", {"accumulate": 2, "clip_norm": 0.5}),
    "a rule of rounds": ("sequential", {"round_rule": GradientRule(0.1, max_epochs=3, batches=4, batch_size=32)}),
    "a promise": ("sequential", {"share": 0.3}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_end_where_one_does(tmp_path: Path, case: str) -> None:
    kind, options = CASES[case]
    plain = {name: value for name, value in options.items() if name != "optimizer_last"}
    expected = train(tmp_path / "one", kind, **PLAIN, **plain)
    first, second = shared_out(2, tmp_path / "two", kind, **options)
    assert_close(first, expected, both=False)
    assert first["promised"] == expected["promised"]
    if first["certificate"] is not None:
        assert first["certificate"] == pytest.approx(expected["certificate"], rel=1e-2)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sequential", "lagrangian"])
def test_tensor_parallelism_on_top_ends_where_one_process_does(tmp_path: Path, kind: str) -> None:
    expected = train(tmp_path / "one", kind, epochs=4, average=0.9, **PLAIN)
    options: dict[str, Any] = {"tensor_parallel": 2, "average": 0.9}
    shared_out(4, tmp_path / "four", kind, epochs=2, **options)
    found = shared_out(4, tmp_path / "four", kind, epochs=4, **options)
    assert_close(found[0], expected)
    for other in found[1:]:
        torch.testing.assert_close(other["shipped"], found[0]["shipped"], rtol=0, atol=0)
    assert_close(train(tmp_path / "four", kind, epochs=4, average=0.9, **PLAIN), expected)


@pytest.mark.slow
def test_running_statistics_are_those_of_the_first_process(tmp_path: Path) -> None:
    first, second = shared_out(2, tmp_path / "two", norm=True, average=0.9, epochs=2, batch=40)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    model = make_model(norm=True)
    model.load_state_dict(first["shipped"])
    alone = sw.audit(make_problem(), model, make_data(51, seed=1))
    assert alone.objective == pytest.approx(first["history"][first["selected"] - 1]["test/objective"], rel=1e-5)


@pytest.mark.slow
def test_a_run_that_was_not_shared_out_goes_on_so(tmp_path: Path) -> None:
    expected = train(tmp_path / "one", "sequential", epochs=4, **PLAIN)
    train(tmp_path / "two", "sequential", epochs=2, **PLAIN)
    assert_close(shared_out(2, tmp_path / "two", epochs=4)[0], expected, both=False)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["torn", "gone"])
def test_a_damaged_part_costs_time_but_not_the_result(tmp_path: Path, fault: str) -> None:
    expected = shared_out(2, tmp_path / "whole", epochs=4)
    shared_out(2, tmp_path / "damaged", epochs=3)
    part = max(max((tmp_path / "damaged" / "checkpoints").glob("*.parts")).iterdir())
    if fault == "torn":
        part.write_bytes(part.read_bytes()[:-1] + b"?")
    else:
        part.unlink()
    found = shared_out(2, tmp_path / "damaged", epochs=4)
    for key in ("shipped", "method", "objective"):
        torch.testing.assert_close(found[0][key], expected[0][key], rtol=0, atol=0)


@pytest.mark.slow
def test_killed_at_any_moment_a_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    options: dict[str, Any] = {"average": 0.9, "checkpoint_steps": 2, "dropout": 0.2}
    expected = shared_out(2, tmp_path / "whole", **options)
    folder, moments, kills = tmp_path / "killed", random.Random(0), 0
    for number in range(4):
        when: dict[str, Any] = {"saves": moments.randint(1, 5), "seconds": moments.uniform(0.001, 0.1)}
        work = partial(train_and_be_killed, devices=2, sharded=True, **when, **options)
        started = start(2, tmp_path / f"start{number}", work, folder, "sequential")
        wait([process.sentinel for process in started], timeout=SECONDS)
        for process in started:
            process.kill()  # one alone would wait for the other
        codes = [process.finish()[0] for process in started]
        assert -signal.SIGPROF in codes or 0 in codes, codes
        kills += -signal.SIGPROF in codes
    found = shared_out(2, folder, **options)
    assert kills >= 2
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert not list(folder.rglob(".partial*"))


@pytest.mark.slow
def test_what_differentiates_samples_is_refused_under_tensor_parallelism(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="of one process"):
        shared_out(2, tmp_path, epochs=1, tensor_parallel=2, certified=True)
