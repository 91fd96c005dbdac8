"""The folder of a run: its settings, state and best model, all that is needed to resume or to report."""

import contextlib
import errno
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from samplewise.audits.audit import Audit
from samplewise.constraints import at_bound
from samplewise.errors import CheckpointError, ConfigurationError, DataError
from samplewise.history import History
from samplewise.optimality.feasibility import Infeasibility
from samplewise.storage import distributed
from samplewise.storage.checkpoint import Checkpoints, load_state, save_state
from samplewise.storage.disk import (
    alone,
    atomic,
    cannot_write,
    clear_partial,
    ensure_writable,
    write_json,
    write_tensors,
)
from samplewise.storage.origins import provenance
from samplewise.storage.records import decoding, read_json
from samplewise.storage.sharding import reshard_like, weights_in_one
from samplewise.training.promise import Promised
from samplewise.training.spec import PROVE, RunSpec
from samplewise.training.state import RunState, Selection, Snapshot

IDENTITY = "run.json"
MODEL, METHOD, AUDIT, VALUES = "best.safetensors", "best-method.safetensors", "audit.json", "audit.safetensors"
PROMISE, PROVED, INFEASIBILITY = "promise.json", "proved.json", "infeasibility.json"
NEXT = "best.next"  # the best model before the checkpoint that knows it is written
WORST = 20  # violators named for each constraint and data set
KEEP = 2  # checkpoints that stay: the newest, and one in case it is torn


class RunFolder:
    """One run on disk.

    ``run.json`` says what was asked and where it was made, ``history.jsonl`` and ``history.csv`` hold the numbers of
    each epoch, ``checkpoints/`` the state to go on from. Of the selected model, ``best.safetensors`` has the weights,
    ``best-method.safetensors`` the method's state of that moment, ``audit.json`` what holds for it, and
    ``audit.safetensors`` objective and measures of every sample that was audited. ``promise.json`` has the outcome of
    a promise, ``proved.json`` which samples, by what they hold, were used up to prove it, ``infeasibility.json`` what a
    search for feasible weights found after how many epochs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints", keep=KEEP)
        self._writes = distributed.rank() == 0

    def begin(self, spec: RunSpec, device: torch.device) -> None:
        """Make this the folder of the run, or refuse it if it is another run's."""
        clear_partial(self.path)
        identity, asked = self.path / IDENTITY, spec.identity()
        if identity.exists():
            self._compare(identity, asked)
        elif (self.path / MODEL).exists() or len(self.checkpoints):
            raise CheckpointError(f"{self.path} holds checkpoints but no {IDENTITY}: it is not a run of this library")
        # Room for one more checkpoint while it is written.
        ensure_writable(self.path, needed=spec.checkpoint_bytes() * max(1, KEEP + 1 - len(self.checkpoints)))
        if not identity.exists():
            write_json(identity, {"asked": asked, "provenance": provenance(seed=spec.seed, device=str(device))})

    def _compare(self, identity: Path, asked: dict[str, Any]) -> None:
        with decoding(identity, what := "the description of a run"):
            known = {**read_json(identity, what)["asked"]}
        wanted = json.loads(json.dumps(asked))
        for key in {**wanted, **known}:
            if wanted.get(key) != known.get(key):
                raise CheckpointError(
                    f"{self.path} holds another run, with {key} = {known.get(key)!r}, not {wanted.get(key)!r} as asked "
                    "for now. Choose another folder, or ask for the same"
                )

    def history(self, epochs: int) -> History:
        """The history of the first ``epochs`` epochs; what was written after the checkpoint will be made again."""
        try:
            rows = [row for row in History.read(self.path).rows if row["epoch"] <= epochs]
            found = "" if rows or not epochs else f"{self.path} has no history"
        except (DataError, KeyError, TypeError) as error:
            rows, found = [], str(error)
        if found:
            warnings.warn(f"{found}; going on without the rows of the {epochs} epochs before", stacklevel=2)
        return History(self.path if self._writes else None, rows)

    def save(self, step: int, state: dict[str, Any], selection: Selection | None) -> None:
        """Write a checkpoint; the best model that it knows of, if new, takes the place of the one before."""
        if self._writes and not (self.path / IDENTITY).exists():  # else it would be made anew, without what was asked
            raise cannot_write(self.path, FileNotFoundError(errno.ENOENT, "gone"))
        self.checkpoints.save(step, state)
        if self._writes:
            self._settle(selection)

    def tidy(self, selection: Selection | None) -> None:
        """Finish or undo a change that was interrupted; ``selection`` is that of the last checkpoint."""
        if self._writes:
            self.checkpoints.prune()
            self._settle(selection)

    def stage(self, selection: Selection, snapshot: Snapshot, spec: RunSpec) -> None:
        """Write the model that was just selected, to take the place of the one before with the next checkpoint."""
        with weights_in_one(self.path, snapshot.weights) as write:
            if not self._writes:
                return
            with atomic(self.path / NEXT) as folder:
                write(folder / MODEL)
                save_state(folder / METHOD, snapshot.method)
                write_tensors(folder / VALUES, _audited_values(snapshot.audits, spec))
                write_json(folder / AUDIT, _findings(snapshot.audits, selection, spec))

    def _settle(self, selection: Selection | None) -> None:
        """Put a best model that waits in its place, if it is the last checkpoint's ``selection``; else drop it."""
        staged = self.path / NEXT
        if not staged.exists():
            return
        # A kill may come between two files. The description goes last: where it is gone, so are the others.
        epoch = json.loads((staged / AUDIT).read_text())["selected"]["epoch"] if (staged / AUDIT).exists() else None
        for path in (staged / name for name in (MODEL, METHOD, VALUES, AUDIT)):
            if selection is None or epoch != selection.epoch:
                path.unlink(missing_ok=True)
            elif path.exists():
                path.replace(self.path / path.name)
        staged.rmdir()

    def write_promise(self, promised: Promised, spec: RunSpec, epochs: int) -> None:
        """Write what came of a promise after so many epochs, and which samples are used up by that."""
        if self._writes:
            write_json(self.path / PROVED, self._proved() | dict.fromkeys(_proving(spec), epochs))
            write_json(self.path / PROMISE, promised.to_dict())

    def write_infeasibility(self, found: Infeasibility, epochs: int) -> None:
        """Write what a search for feasible weights found after so many epochs."""
        if self._writes:
            write_json(self.path / INFEASIBILITY, {"epochs": epochs, "sentence": str(found)})

    def refuse_second_proof(self, spec: RunSpec, state: RunState, *, goes_on: bool) -> None:
        """A proof takes samples never evaluated before: these cannot prove what is trained after their result."""
        proved = self._proved()
        before = {proved[sample] for sample in _proving(spec) if sample in proved}
        if before and (goes_on or min(before) < state.epoch):
            raise ConfigurationError(
                f"{self.path}: this run's promise was proved after {min(before)} epochs, and prove_on, or a part of "
                "it, is used up: to go on, give a Promise with other samples to prove it on"
            )

    def _proved(self) -> dict[str, int]:
        """After how many epochs a promise was proved, by the samples that proved it."""
        path, what = self.path / PROVED, "the samples that proved a promise"
        with decoding(path, what):
            return {sample: int(epochs) for sample, epochs in read_json(path, what).items()} if path.exists() else {}

    def comes_again(self, epoch: int) -> bool:
        """Whether the best model here is of a later epoch, which a run that went back to this one will select again."""
        later = False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            later = json.loads((self.path / AUDIT).read_text())["selected"]["epoch"] > epoch
        return all(distributed.all_objects(later))

    def snapshot(self, like: Mapping[str, Tensor], selection: Selection, spec: RunSpec) -> Snapshot | None:
        """The model of ``selection``, sharded as ``like`` is; every process must call, and all get it or none.

        None, with a warning, if its files are gone, damaged or of another epoch.
        """
        try:
            with distributed.together(), decoding(self.path, "a run with its best model"):
                kept = json.loads((self.path / AUDIT).read_text())
                if kept["selected"]["epoch"] != selection.epoch:
                    raise CheckpointError(f"it is of epoch {kept['selected']['epoch']}, not of {selection.epoch}")
                with safe_open(self.path / MODEL, framework="pt") as file:  # so that one weight at a time is whole
                    weights = {name: reshard_like(file.get_tensor(name), like.get(name)) for name in file.keys()}  # noqa: SIM118
                audits = _audits(self.path / VALUES, kept["splits"], spec)
                return Snapshot(weights, load_state(self.path / METHOD), audits)
        except CheckpointError as error:
            warnings.warn(f"the best model so far cannot be read ({error}); choosing anew from here", stacklevel=2)
            return None


@contextlib.contextmanager
def open_folder(path: Path, spec: RunSpec, device: torch.device) -> Iterator[RunFolder]:
    """A context with the folder of this run, locked; nothing is written before it is sure to be this run's."""
    folder = RunFolder(path)
    with contextlib.ExitStack() as stack:
        with distributed.together():
            stack.enter_context(alone(path, "run"))
            if distributed.rank() == 0:
                folder.begin(spec, device)
        yield folder


def _proving(spec: RunSpec) -> list[str]:
    """Fingerprints of the calibration samples, which are to prove a promise."""
    return spec.calibration[PROVE].fingerprints if PROVE in spec.calibration else []


def _findings(audits: Mapping[str, Audit], selection: Selection, spec: RunSpec) -> dict[str, Any]:
    """What the audits of the selected epoch found, by data set, for strict JSON.

    Of the training data also what it would have cost to have each of the worst violators meet its bound.
    """
    bounds = {name: part.constraint for name, part in audits[selection.split].items()}
    worst = {
        split: {name: part.worst_violators(WORST) for name, part in found.items()} for split, found in audits.items()
    }
    splits = {split: {**found.to_dict(), "violators": worst[split]} for split, found in audits.items()}
    if (own := spec.trained_on) is not None and spec.method.enforces:
        costs = {name: spec.method.costs(name, part.values) for name, part in audits[own].items()}
        named = {name: [sample for sample, _ in found] for name, found in worst[own].items()}
        splits[own]["costs"] = {name: costs[name][named[name]].tolist() for name in costs}
    return {
        "format": "samplewise-audit-2",
        "selected": selection.to_dict(),
        "trained_on": spec.trained_on,
        "constraints": {
            name: {**asdict(bound), "measure": bound.column, "formula": str(bound)} for name, bound in bounds.items()
        },
        "splits": splits,
    }


def _audits(path: Path, splits: Mapping[str, Any], spec: RunSpec) -> dict[str, Audit]:
    """The audits whose values were kept."""
    values, bounds = load_file(path), spec.problem.constraints
    return {
        split: Audit(values[f"{split}/objective"], {name: values[f"{split}/{name}"] for name in part["means"]}, bounds)
        for split, part in splits.items()
    }


def _audited_values(audits: Mapping[str, Audit], spec: RunSpec) -> dict[str, Tensor]:
    """Objective and measures of every audited sample, ``SPLIT/MEASURE``, what bounds by numbers are on among them, and
    the training data's ``multipliers/CONSTRAINT``.
    """
    values: dict[str, Tensor] = {}
    for split, found in audits.items():
        bounded = {part.constraint.column: part.values for part in found.values()}
        # No measure can be called as the objective is.
        columns = found.measures | bounded | {"objective": found.objectives}
        values |= {f"{split}/{name}": each for name, each in columns.items()}
    if spec.trained_on is not None:
        index = torch.arange(audits[spec.trained_on].samples)
        for each in spec.method.as_trained:
            g = at_bound(each.signed_residual(audits[spec.trained_on][each.name].values))
            values[f"multipliers/{each.name}"] = spec.method.multipliers(each.name, g, index)
    # Copies, since a file cannot hold two names of one tensor.
    return {name: each.detach().cpu().clone() for name, each in values.items()}
