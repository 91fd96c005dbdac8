"""The folder that :func:`samplewise.fit` writes, read for a report; and the certificate, put there to be shown."""

import math
import re
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
    Curve,
    Distribution,
    Finding,
    Multipliers,
    Numbers,
    Requirement,
    RunReport,
    Statement,
    distribution,
    long_tail,
)
from samplewise.storage.disk import write_json
from samplewise.storage.records import decoding, from_plain, read_json
from samplewise.training.folder import AUDIT, IDENTITY, INFEASIBILITY, PROMISE, VALUES

CURVES = {"objective": "Objective", "satisfied": "Share satisfied", "violation": "Mean violation"}
CERTIFICATE = "certificate.json"
FORMAT = "samplewise-audit-2"
MULTIPLIERS = "multipliers"
FACTS = {
    "residual": "the largest of the three",
    "free": "multipliers chosen for the least residual",
    "settled": "whether these are the best",
    "gradient_size": "mean length of the samples' gradients, which stationarity is relative to",
    "objective_size": "what f changes by with a tenth of the weights, which complementarity is relative to",
    "noise": "standard error of the mean gradient, relative as stationarity is",
    "samples_needed": "samples that would tell it from noise",
}
"""What a certificate's numbers are called where their names alone do not say it."""
Row = Mapping[str, Any]


def keep_certificate(folder: Path | str, certificate: Certificate) -> None:
    """Put a certificate into the folder of the run it belongs to, where a report finds it."""
    tails = {name: asdict(long_tail(name, values.cpu().numpy())) for name, values in certificate.multipliers.items()}
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
        asked, method = stored["asked"], stored["asked"]["method"]
        over = "a stream of" if asked["samples"] is None else f"{asked['samples']:,}"
        options = [f"{key} {value}" for key, value in method.items() if key not in ("type", "constraints")]
        numbers = sum(math.prod(shape) for shape in asked["model"].values())
        size = f"{len(asked['model']):,} tensors of {numbers:,} numbers in all"
        run = RunReport(
            name=folder.resolve().name,
            folder=str(folder),
            problem=f"Minimise the mean objective over {over} training samples",
            requirements=tuple(Requirement(name="", measure="", formula=str(text)) for text in asked["constraints"]),
            method=", ".join([method["type"], *options]),
            selected="not audited yet",
            splits=(),
            curves=curves,
            multipliers=read_multipliers(folder),
            promised_share=_promised_share(asked),
            promise=read_promise(folder),
            infeasibility=_read_infeasibility(folder, len(rows)),
            certificate=read_certificate(folder),
            settings={**asked, "epochs so far": len(rows), "model": size},
            provenance=dict(stored["provenance"]),
        )
    return [_with_findings(run, folder, rows) if (folder / AUDIT).exists() else run]


def _with_findings(run: RunReport, folder: Path, rows: Sequence[Row]) -> RunReport:
    """The run and the audit of its selected model."""
    path = folder / AUDIT
    kept = read_json(path, "an audit", format=FORMAT)
    with decoding(path, "an audit"):
        requirements = tuple(from_plain(Requirement, part, name=name) for name, part in kept["constraints"].items())
        bounded = [each.measure for each in requirements]  # among them differences from the samples' own bounds
        measures = {split: (*part["means"], *bounded) for split, part in kept["splits"].items()}
        splits = tuple(_split(name, kept, rows) for name in kept["splits"])
        # The worst sample may stay where it is if only a share is asked for, or promised.
        shared = {name for split in splits for name, part in split.constraints.items() if part.share < 1}
        every_sample = [each for each in requirements if each.name not in shared and run.promise is None]
        return replace(
            run,
            notes=tuple(read_forecasts(rows, run.settings["method"], every_sample)),
            requirements=requirements,
            selected=str(kept["selected"]["reason"]),
            selected_epoch=int(kept["selected"]["epoch"]),
            splits=splits,
            distributions=tuple(_distributions(folder / VALUES, measures, requirements)),
        )


def read_certificate(folder: Path) -> Statement | None:
    """The certificate that :func:`keep_certificate` put there, if it did."""
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    stored = read_json(path, "a certificate")
    with decoding(path, "a certificate"):
        nested = {"constraints", "licq", "curvature", "sentence", "multipliers"}
        facts = {FACTS.get(name, name): value for name, value in stored.items() if name not in nested}
        facts |= {f"constraint {name}": part for name, part in stored["constraints"].items()}
        return Statement(str(stored["sentence"]), {**facts, "E-LICQ": stored["licq"], "curvature": stored["curvature"]})


def read_promise(folder: Path) -> Statement | None:
    """The outcome of the run's promise; None without a promise, or before the run has ended."""
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
        if stored["achievable_bounds"]:
            facts["could be promised instead"] = ", ".join(map(str, stored["achievable_bounds"].values()))
        if stored.get("comparison"):
            facts["comparison"] = stored["comparison"]
        at_least = words.at_least(stored["share_at_least"])
        return Statement(str(stored["message"]), facts, kept=bool(stored["kept"]), at_least=at_least)


def _promised_share(asked: Row) -> str:
    """The share that the run was asked to promise, known before it has ended; empty without a promise."""
    found = re.search(r"share=([\d.e-]+)", str(asked.get("promise") or ""))
    return words.percent(float(found[1])) if found else ""


def _read_infeasibility(folder: Path, epochs: int) -> str:
    """What a search for feasible weights found; empty if the run was continued since."""
    path, what = folder / INFEASIBILITY, "the outcome of a search for feasible weights"
    if not path.exists():
        return ""
    stored = read_json(path, what)
    with decoding(path, what):
        return str(stored["sentence"]) if stored["epochs"] == epochs else ""


def read_multipliers(folder: Path) -> tuple[Multipliers, ...]:
    """The multipliers of a run: those of its certificate or, without one, the method's own estimates."""
    path = folder / CERTIFICATE
    if path.exists():
        stored = read_json(path, "a certificate")
        with decoding(path, "a certificate"):
            return tuple(from_plain(Multipliers, part, constraint=name) for name, part in stored["multipliers"].items())
    return tuple(long_tail(name, values) for name, values in _read_values(folder / VALUES, MULTIPLIERS).items())


def _distributions(
    path: Path, measures: Mapping[str, Sequence[str]], requirements: Sequence[Requirement]
) -> Iterator[Distribution]:
    """How every measure is spread on every data set, counted from the values of every sample."""
    values = {split: _read_values(path, split) for split in measures}
    if not path.exists():
        return
    for measure in dict.fromkeys(name for names in measures.values() for name in names):
        sides = [side for each in requirements if each.measure == measure for side in (each.lower, each.upper)]
        yield distribution(
            measure,
            {split: values[split][measure] for split in measures if measure in measures[split]},
            [side for side in sides if side is not None],
        )


def _read_values(path: Path, prefix: str) -> dict[str, NDArray[Any]]:
    """The tensors below ``prefix/``, one value for each sample; empty if the file was left out of a copy of the run."""
    if not path.exists():
        return {}
    with decoding(path, "the values of an audit"), safe_open(path, framework="np") as file:
        start = f"{prefix}/"
        names = [name for name in file.keys() if name.startswith(start)]  # noqa: SIM118 - not a dictionary
        return {name.removeprefix(start): file.get_tensor(name) for name in names}


def _split(name: str, kept: Mapping[str, Any], rows: Sequence[Row]) -> Audited:
    """One data set of the stored audit."""
    part = kept["splits"][name]
    planned = part.get("n_comparisons", part.get("compared", 1))  # as version 0.2 wrote it
    n_comparisons: float = 1
    if planned is None or name in (kept["trained_on"], "train"):  # a part of the training data is not unseen either
        n_comparisons = math.inf
    elif name == kept["selected"]["split"]:  # as many as were planned, or more in a run that went on
        n_comparisons = max(int(planned), sum(f"{name}/satisfied" in row for row in rows))
    return from_plain(
        Audited,
        part,
        name=name,
        samples=_counted(part),
        n_comparisons=n_comparisons,
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


def _counted(audit: Mapping[str, Any]) -> int:
    return int(audit.get("counted") or audit["samples"])  # which version 0.2 did not tell apart


def read_curves(rows: Sequence[Row], constraints: Sequence[str]) -> Iterator[Curve]:
    """The curves in a history: of each audited data set, of what was seen while training, tau, and steered margins."""
    several = len(constraints) > 1
    taus = [_curve(rows, f"tau/{name}")[1] for name in constraints]
    one_tau = all(each == taus[0] for each in taus)
    for column in dict.fromkeys(name for row in rows for name in row):
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


def read_forecasts(rows: Sequence[Row], method: Row, requirements: Sequence[Requirement]) -> Iterator[str]:
    """What the rounds of a history say of those to come, one sentence for each requirement that has a trend.

    ``method`` is how the run describes it; of a method that is not the library's, or whose tau is fixed, nothing is
    said.
    """
    penalty: Kind = "quadratic" if str(method.get("penalty")).startswith("Quadratic") else "linear"
    kinds: dict[str, Kind] = {"SequentialPenalty": penalty, "AugmentedLagrangian": "lagrangian"}
    if method["type"] not in kinds:
        return
    for each in requirements:
        tau, worst = f"tau/{each.name}", f"running/{each.name}/worst"
        # Of the epochs of one round the last has seen all of it.
        rounds = {row.get("round"): (row[tau], row[worst]) for row in rows if worst in row and not row.get("warmup")}
        if (found := forecast(rounds.values(), kinds[method["type"]], margin=each.margin)) is not None:
            yield f"Forecast for {each.name}: {found}."


def _curve(rows: Sequence[Row], column: str) -> tuple[tuple[float, ...], Numbers]:
    """Epochs and values where the history has the column; what is not finite is written as nothing."""
    having = [row for row in rows if column in row]
    values = tuple(None if row[column] in (None, "") else float(row[column]) for row in having)
    return tuple(float(row["epoch"]) for row in having), values
