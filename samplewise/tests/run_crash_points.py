"""Kill a run before each operation that leaves a trace on the disk, resume it, and compare with a run left alone.

Each run is a fork of the process that compares, so that imports cost once. What a kill after an operation leaves is
what one before the next operation leaves, so that "before each" is "after each" too.
"""

import builtins
import functools
import hashlib
import io
import itertools
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401 - imported once, before the forks
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.storage import origins
from small import fit, of_last_step

CHANGING = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "chmod")
"""Functions of ``os`` that what is higher up, such as pathlib, shutil and tempfile, comes down to."""


class Killer:
    """Counts what changes the disk, and kills this process before the operation of number ``at``."""

    def __init__(self, at: int | None) -> None:
        self.at, self.done = at, list[str]()

    def tick(self, name: str) -> None:
        if len(self.done) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.done.append(name)

    def wrap(self, module: Any, name: str) -> None:
        original = getattr(module, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            self.tick(name)
            return original(*arguments, **options)

        setattr(module, name, watched)

    def install(self) -> None:
        os.fsync = lambda fd: None  # a kill, unlike a power failure, loses nothing that was not flushed
        for name in CHANGING:
            self.wrap(os, name)
        self.wrap(safetensors.torch, "save_file")
        for module in (io, builtins):
            self.wrap_open(module)

    def wrap_open(self, module: Any) -> None:
        """Files opened for writing: also killed between the two halves of what is written at once."""
        original: Callable[..., Any] = module.open

        def watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+"):
                return original(file, mode, *arguments, **options)
            self.tick(f"open {mode}")
            opened = original(file, mode, *arguments, **options)
            if isinstance(opened, io.TextIOWrapper):
                opened.write = self.torn(opened.write, opened.flush)  # type: ignore[method-assign]
            return opened

        module.open = watched

    def torn(self, write: Callable[[str], int], flush: Callable[[], None]) -> Callable[[str], int]:
        def watched(text: str) -> int:
            half = len(text) // 2
            write(text[:half])
            flush()
            self.tick("the second half of a write")
            return half + write(text[half:])

        return watched


class Network(nn.Module):
    """With dropout, which makes resuming hard."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.dropout = nn.Linear(6, 3), nn.Linear(3, 6), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return code, self.decoder(self.dropout(code))


def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    code, decoded = model(batch[0])
    return code.abs().mean(1), {"error": (decoded - batch[0]).square().mean(1)}


def run(case: str, folder: Path) -> dict[str, Any]:
    """A run of two epochs of three steps, and everything that it ends with."""
    x = torch.rand(12, 6, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(3)
    model, problem = Network(), sw.Problem(evaluate, [sw.AtMost("error", 0.01, margin=0.002)])
    options: dict[str, Any] = {"epochs": 2, "clip_norm": 1.0, "validation": sw.Validation(every=2)}
    method: sw.Method = sw.AugmentedLagrangian(problem.constraints, samples=12, schedule=sw.Constant(10.0))
    if case == "penalty":
        options = {"epochs": 1, "warmup_epochs": 1}
        method = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(1.0, growth=1.2))
    options |= {"optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2), "batch_size": 4, "checkpoint_steps": 1}
    audited = {"train": TensorDataset(x), "test": TensorDataset(x[:5] * 1.01)}
    solution = fit(problem, model, TensorDataset(x), method=method, audit_on=audited, checkpoint=folder, **options)
    return {
        "last": contents(of_last_step(folder)),
        "selected": contents(solution.model.state_dict()),
        "method": contents(method.state_dict()),
        "selected method": contents(solution.method.state_dict()),
        "status": solution.status.name,
        "rows": [timeless(row) for row in solution.history.rows],
        "rows on disk": [timeless(json.loads(line)) for line in (folder / "history.jsonl").read_text().splitlines()],
        "table on disk": len((folder / "history.csv").read_text().splitlines()),
        "files": files(folder),
    }


def contents(state: dict[str, Tensor]) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in state.items()}


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def files(folder: Path) -> dict[str, str]:
    """Everything in a folder, with what it holds, where that is no time."""
    return {str(path.relative_to(folder)): held(path) for path in folder.rglob("*")}


def held(path: Path) -> str:
    if path.is_dir() or path.name in ("run.json", "history.jsonl", "history.csv"):
        return ""
    if path.suffix == ".safetensors":
        with safetensors.safe_open(path, framework="pt") as file:
            header, tensors = file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return hashlib.sha256(repr((sorted(header.items()), contents(tensors))).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def in_fork(case: str, folder: Path, at: int | None = None) -> dict[str, Any] | None:
    """The end of a run in a process of its own, or None if it was killed."""
    result = folder.with_suffix(".result")
    result.parent.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        killer = Killer(at)
        try:
            killer.install()
            found = run(case, folder)
        except BaseException:
            found = {"raised": traceback.format_exc()}
        killer.at = None
        result.write_text(json.dumps(found | {"operations": killer.done}))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    ended: dict[str, Any] = json.loads(result.read_text())
    return ended


def compare(case: str, folder: Path, every: int) -> dict[str, Any]:
    """Kill a run at every n-th operation, and compare how each ends with how it ends undisturbed."""
    expected = in_fork(case, folder / "whole")
    assert expected is not None
    operations = expected.pop("operations")
    wrong: list[Any] = []
    again = itertools.cycle(range(0, 30, 3))  # a resumed run first puts things in order, and is killed at that as well
    for at in range(0, len(operations), every):
        place = folder / str(at)
        if in_fork(case, place, at) is not None:
            wrong.append([at, operations[at], "was not killed"])
        in_fork(case, place, next(again))
        found = in_fork(case, place)
        assert found is not None
        if "raised" in found:
            wrong.append([at, operations[at], found["raised"]])
        elif found | {"operations": 0} != expected | {"operations": 0}:
            differs = [name for name in expected if found[name] != expected[name]]
            strays = sorted(found["files"].keys() ^ expected["files"].keys())
            wrong.append([at, operations[at], differs, strays])
        shutil.rmtree(place)
    return {"operations": len(operations), "wrong": wrong}


def compare_and_report(folder: Path, case: str, every: int, report: Path) -> None:
    """Into ``report`` as JSON: how many operations there were, and what went wrong."""
    # Neither changes while the forks run, and asking takes as long as the training.
    origins._git, metadata.version = functools.cache(origins._git), functools.cache(metadata.version)
    run(case, folder / "first")  # what is loaded at first use is so in all forks
    report.write_text(json.dumps(compare(case, folder / case, every)))
