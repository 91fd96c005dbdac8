"""The folder that :func:`samplewise.fit` writes, read for a report; and the certificate, put there to be shown."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import safe_open

from samplewise.errors import DataError
from samplewise.history import History
from samplewise.optimality import Certificate
from samplewise.report import words
from samplewise.report.forecast import Kind, forecast
from samplewise.report.run import (
    TRAINING,
    Audited,
    Certified,
    Curve,
    Distribution,
    Finding,
    Multipliers,
    Numbers,
    Proved,
    Requirement,
    RunReport,
    distribution,
    ranked_multipliers,
)
from samplewise.storage.disk import write_json
from samplewise.storage.records import SettingsFile, decoding, from_plain, read_json
from samplewise.training.folder import AUDIT, IDENTITY, PROMISE, VALUES

CURVES = {"objective": "Objective", "satisfied": "Share satisfied", "violation": "Mean violation"}
CERTIFICATE = "certificate.json"
FORMAT = "samplewise-audit-2"
MULTIPLIERS = "multipliers"
FACTS = {
    "residual": "residual, the largest of the three",
    "free": "multipliers that were fitted",
    "settled": "whether these are the best",
    "gradient_size": "scale of stationarity: mean length of the samples' gradients",
    "objective_size": "scale of complementarity: change of f with a tenth of the weights",
    "noise": "standard error of the mean gradient, on the scale of stationarity",
    "samples_needed": "samples needed to tell stationarity from noise",
}
"""Labels of a certificate's numbers whose names alone do not explain them."""


def keep_certificate(folder: Path | str, certificate: Certificate) -> None:
    """Put a certificate into the folder of the run it belongs to, where a report finds it."""
    tails = {
        name: asdict(ranked_multipliers(name, values.cpu().numpy())) for name, values in certificate.multipliers.items()
    }
    write_json(Path(folder) / CERTIFICATE, {**certificate.to_dict(), "multipliers": tails})


def read_fit(folder: Path) -> Sequence[RunReport] | None:
    """The run in a folder of ``fit``, whether it has ended or not; None if the folder is of another kind."""
    identity = folder / IDENTITY
    if not identity.exists():
        return None
    stored = read_json(identity, "a run of fit")
    if "asked" not in stored:
        return None
    with decoding(folder / "history.jsonl", "a history"):
        rows = History.read(folder).rows
        if not rows:
            raise DataError(f"{folder}: the run has not ended an epoch yet; make the report later")
        # Each constraint has its tau.
        names = dict.fromkeys(name.partition("/")[2] for row in rows for name in row if name.startswith("tau/"))
        curves = tuple(read_curves(rows, list(names)))
    with decoding(identity, "a run of fit"):
        asked = stored["asked"]
        over = "a stream of" if asked["samples"] is None else f"{asked['samples']:,}"
        run = RunReport(
            name=folder.resolve().name,
            folder=str(folder),
            problem=f"Minimise the mean objective over {over} training samples",
            requirements=tuple(Requirement(name="", measure="", formula=str(text)) for text in asked["constraints"]),
            method=_method(asked["method"]),
            selected="not audited yet",
            splits=(),
            curves=curves,
            multipliers=read_multipliers(folder),
            promise=read_promise(folder),
            certificate=read_certificate(folder),
            settings={**asked, "epochs so far": len(rows), "model": _size(asked["model"])},
            provenance=dict(stored["provenance"]),
        )
    return [_with_findings(run, folder, rows) if (folder / AUDIT).exists() else run]


def read_fit_within(
    folder: Path, settings_file: SettingsFile[Any], key: str
) -> tuple[RunReport, Mapping[str, Any]] | None:
    """The run of ``fit`` in the folder of a command, and the command's settings; None if the folder is of another kind.

    Args:
        folder: of the command, with the run in ``fit`` below it.
        settings_file: what the command keeps its settings in.
        key: what the report calls them.
    """
    if not settings_file.belongs_to(folder):
        return None
    settings = asdict(settings_file.read(folder))
    found = read_fit(folder / "fit")
    if found is None:
        raise DataError(f"{folder}: its training has not begun yet; make the report later")
    (run,) = found
    named = replace(run, name=folder.resolve().name, folder=str(folder), settings={key: settings, **run.settings})
    return named, settings


def _with_findings(run: RunReport, folder: Path, rows: Sequence[Mapping[str, Any]]) -> RunReport:
    path = folder / AUDIT
    kept = read_json(path, "an audit", format=FORMAT)
    with decoding(path, "an audit"):
        requirements = tuple(from_plain(Requirement, part, name=name) for name, part in kept["constraints"].items())
        bounded = [each.measure for each in requirements]  # among them differences from the samples' own bounds
        measures = {split: (*part["means"], *bounded) for split, part in kept["splits"].items()}
        every_sample = [each for each in requirements if _share(kept, each.name) == 1.0]
        return replace(
            run,
            notes=tuple(read_forecasts(rows, run.settings["method"], every_sample)) if run.promise is None else (),
            requirements=requirements,
            selected=str(kept["selected"]["reason"]),
            selected_epoch=int(kept["selected"]["epoch"]),
            splits=tuple(
                _split(name, part, kept, _compared(name, part, kept, rows)) for name, part in kept["splits"].items()
            ),
            distributions=tuple(_distributions(folder / VALUES, measures, requirements)),
        )


def read_certificate(folder: Path) -> Certified | None:
    """The certificate in a run's folder, if there is one; see :func:`keep_certificate`."""
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    stored = read_json(path, "a certificate")
    with decoding(path, "a certificate"):
        nested = {"constraints", "licq", "curvature", "sentence", "multipliers"}
        facts = {FACTS.get(name, name): value for name, value in stored.items() if name not in nested}
        facts |= {f"constraint {name}": part for name, part in stored["constraints"].items()}
        facts["E-LICQ"] = stored["licq"]
        if stored["curvature"] is not None:  # which is measured only where it is asked for
            facts["curvature"] = stored["curvature"]
        return Certified(str(stored["sentence"]), facts)


def read_promise(folder: Path) -> Proved | None:
    """The outcome of the run's promise, if it had one and has ended."""
    path = folder / PROMISE
    if not path.exists():
        return None
    stored = read_json(path, "the outcome of a promise")
    with decoding(path, "the outcome of a promise"):
        facts = {
            "asked for": words.percent(stored["share"]),
            "kept": stored["kept"],
            "of all such samples, at least": words.at_least(stored["share_at_least"]),
            "confidence": words.percent(stored["confidence"]),
            "samples that proved it": words.count(_counted(stored["audit"])),
            "violated among them": words.count(stored["audit"]["violated"]),
        }
        for name in stored["margins"]:
            facts |= {f"margin of {name}": stored["margins"][name], f"tau of {name}": stored["taus"][name]}
        if stored["instead"]:
            facts["could be promised instead"] = ", ".join(map(str, stored["instead"].values()))
        return Proved(bool(stored["kept"]), str(stored["message"]), facts)


def read_multipliers(folder: Path) -> tuple[Multipliers, ...]:
    """The multipliers of a run: those of its certificate or, without one, the method's own estimates."""
    path = folder / CERTIFICATE
    if path.exists():
        stored = read_json(path, "a certificate")
        with decoding(path, "a certificate"):
            return tuple(from_plain(Multipliers, part, constraint=name) for name, part in stored["multipliers"].items())
    if not (folder / VALUES).exists():
        return ()
    found = _read_values(folder / VALUES, MULTIPLIERS)
    return tuple(ranked_multipliers(name, values) for name, values in found.items())


def _distributions(
    path: Path, measures: Mapping[str, Sequence[str]], requirements: Sequence[Requirement]
) -> Iterator[Distribution]:
    """How every measure is spread on every data set, counted from the values of every sample."""
    if not path.exists():
        return
    values = {split: _read_values(path, split) for split in measures}
    for measure in dict.fromkeys(name for names in measures.values() for name in names):
        sides = [side for each in requirements if each.measure == measure for side in (each.lower, each.upper)]
        yield distribution(
            measure,
            {split: values[split][measure] for split in measures if measure in measures[split]},
            [side for side in sides if side is not None],
        )


def _read_values(path: Path, prefix: str) -> dict[str, NDArray[Any]]:
    """What stands under ``prefix/`` among the values of every sample, as ``fit`` keeps them beside its audit."""
    with decoding(path, "the values of an audit"), safe_open(path, framework="np") as file:
        start = f"{prefix}/"
        names = [name for name in file.keys() if name.startswith(start)]  # noqa: SIM118 - not a dictionary
        return {name.removeprefix(start): file.get_tensor(name) for name in names}


def _method(described: Mapping[str, Any]) -> str:
    parts = [f"{key} {value}" for key, value in described.items() if key not in ("type", "constraints")]
    return ", ".join([str(described["type"]), *parts])


def _compared(name: str, part: Mapping[str, Any], kept: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float:
    """How many models were compared on a data set: as planned when it was audited, or more in a run that went on."""
    planned = part.get("compared", 1)
    if planned is None or name in (kept["trained_on"], "train"):  # a part of the training data is not unseen either
        return math.inf
    made = sum(f"{name}/satisfied" in row for row in rows)
    return max(int(planned), made) if name == kept["selected"]["split"] else 1


def _split(name: str, part: Mapping[str, Any], kept: Mapping[str, Any], compared: float) -> Audited:
    return from_plain(
        Audited,
        part,
        name=name,
        samples=_counted(part),
        compared=compared,
        means={measure: float(mean) for measure, mean in part["means"].items() if mean is not None},
        constraints={
            constraint: from_plain(
                Finding,
                found,
                violators=tuple((int(index), float(by)) for index, by in part["violators"][constraint]),
                costs=tuple(map(float, part.get("costs", {}).get(constraint, ()))),
                **{key: math.nan for key in ("satisfied", "mean_violation") if found[key] is None},  # no sample has one
            )
            for constraint, found in part["constraints"].items()
        },
        confidence=min((float(found["confidence"]) for found in part["constraints"].values()), default=0.95),
    )


def _share(kept: Mapping[str, Any], constraint: str) -> float:
    """The share of the samples that was asked for."""
    found = [part["constraints"][constraint] for part in kept["splits"].values()]
    return min((float(each.get("share", 1.0)) for each in found), default=1.0)


def _counted(audit: Mapping[str, Any]) -> int:
    return int(audit.get("counted") or audit["samples"])  # which runs of before did not tell apart


def _size(model: Mapping[str, Sequence[int]]) -> str:
    return f"{len(model):,} tensors of {sum(math.prod(shape) for shape in model.values()):,} numbers in all"


def read_curves(rows: Sequence[Mapping[str, Any]], constraints: Sequence[str]) -> Iterator[Curve]:
    """The curves in a history: of each audited data set, of what was seen while training, tau, and steered margins."""
    columns = dict.fromkeys(name for row in rows for name in row)
    several = len(constraints) > 1
    taus = [_curve(rows, f"tau/{name}")[1] for name in constraints]
    one_tau = all(each == taus[0] for each in taus)
    for column in columns:
        split, _, rest = column.partition("/")
        shown = TRAINING if split == "running" else split
        constraint, _, what = rest.rpartition("/")
        if split == "tau":
            if not any(_curve(rows, column)[1]) or (one_tau and rest != constraints[0]):
                continue  # nothing was enforced, or the same is shown already
            title, shown = "τ" if one_tau else f"τ: {rest}", ""
        elif split == "margin":
            title, shown = f"Margin: {rest}" if several else "Margin", ""
        elif rest == "objective" or (rest == "satisfied" and several):
            title = CURVES[rest] + (" by all" if rest == "satisfied" else "")
        elif constraint in constraints and what in CURVES:
            title = f"{CURVES[what]}: {constraint}" if several else CURVES[what]
        else:
            continue
        yield Curve(title, shown, *_curve(rows, column))


def read_forecasts(
    rows: Sequence[Mapping[str, Any]], method: Mapping[str, Any], requirements: Sequence[Requirement]
) -> Iterator[str]:
    """What the rounds of a history say of those to come, one sentence for each requirement that has a trend.

    ``method`` is how the run describes it; of a method that is not the library's, or whose tau is fixed, nothing is
    said. A requirement on a share of the samples has no trend: its worst sample may stay where it is.
    """
    penalty: Kind = "quadratic" if str(method.get("penalty")).startswith("Quadratic") else "linear"
    kinds: dict[str, Kind] = {"SequentialPenalty": penalty, "AugmentedLagrangian": "lagrangian"}
    kind = kinds.get(method["type"])
    if kind is None:
        return
    for each in requirements:
        tau, worst = f"tau/{each.name}", f"running/{each.name}/worst"
        # Of the epochs of one round the last has seen all of it.
        rounds = {row.get("round"): (row[tau], row[worst]) for row in rows if worst in row and not row.get("warmup")}
        if (found := forecast(rounds.values(), kind, margin=each.margin)) is not None:
            yield f"{each.name}: {found}."


def _curve(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[tuple[float, ...], Numbers]:
    """Epochs and values where the history has the column; what is not finite is written as nothing."""
    points = [
        (float(row["epoch"]), None if row[column] in (None, "") else float(row[column]))
        for row in rows
        if column in row
    ]
    return tuple(epoch for epoch, _ in points), tuple(value for _, value in points)
