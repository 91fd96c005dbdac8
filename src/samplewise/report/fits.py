"""The folder that :func:`samplewise.fit` writes, read for a report; and the certificate, put there to be shown."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from samplewise.certificate import Certificate
from samplewise.data.records import SettingsFile, decoding, read_json
from samplewise.disk import write_json
from samplewise.errors import DataError, RecordError
from samplewise.history import History
from samplewise.report.readers import number, read_curves
from samplewise.report.run import Certified, Distribution, Finding, Multipliers, Requirement, RunReport, Split
from samplewise.report.spread import distribution, long_tail
from samplewise.training.folder import AUDIT, IDENTITY, VALUES

__all__ = ["keep_certificate", "read_certificate", "read_fit", "read_fit_within", "read_multipliers"]

CERTIFICATE = "certificate.json"
FORMAT = "samplewise-audit-2"
MULTIPLIERS = "multipliers"
FACTS = {
    "own_stationarity": "stationarity with the method's own multipliers",
    "gradient": "norm of the objective's gradient",
    "relative": "stationarity relative to it",
    "free": "multipliers chosen for the least residual",
}
"""What a certificate's numbers are called where their names alone do not say it."""


def keep_certificate(folder: Path | str, certificate: Certificate) -> None:
    """Put a certificate into the folder of the run it belongs to, where a report finds it.

    Args:
        folder: of the run.
        certificate: of its end point.
    """
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
        curves = tuple(read_curves(rows, _constraint_names(rows)))
    with decoding(identity, "a run of fit"):
        asked = stored["asked"]
        run = RunReport(
            name=folder.resolve().name,
            folder=str(folder),
            problem=f"Minimise the mean objective over {asked['samples']:,} training samples",
            requirements=tuple(Requirement(name="", measure="", formula=str(text)) for text in asked["constraints"]),
            method=_method(asked["method"]),
            selected="not audited yet",
            splits=(),
            curves=curves,
            multipliers=read_multipliers(folder),
            certificate=read_certificate(folder),
            settings={**asked, "epochs so far": len(rows), "model": _size(asked["model"])},
            provenance=dict(stored["provenance"]),
        )
    return [_with_findings(run, folder) if (folder / AUDIT).exists() else run]


def read_fit_within(
    folder: Path, settings_file: SettingsFile[Any], key: str
) -> tuple[RunReport, Mapping[str, Any]] | None:
    """The run of ``fit`` in the folder of a command, and the command's settings; None if the folder is of another kind.

    Args:
        folder: of the command, with the run in ``fit`` below it.
        settings_file: what the command keeps its settings in.
        key: what the report calls them.
    """
    path = folder / settings_file.name
    if not path.exists():
        return None
    stored = read_json(path, "a run")
    if stored.get("format") != settings_file.format:
        return None
    found = read_fit(folder / "fit")
    if found is None:
        raise DataError(f"{folder}: its training has not begun yet; make the report later")
    (run,) = found
    with decoding(path, f"a run of {settings_file.what}"):
        settings = dict(stored["settings"])
    named = replace(run, name=folder.resolve().name, folder=str(folder), settings={key: settings, **run.settings})
    return named, settings


def _with_findings(run: RunReport, folder: Path) -> RunReport:
    path = folder / AUDIT
    kept = read_json(path, "an audit", format=FORMAT)
    with decoding(path, "an audit"):
        requirements = tuple(_requirement(name, part) for name, part in kept["constraints"].items())
        measures = {split: tuple(part["means"]) for split, part in kept["splits"].items()}
        return replace(
            run,
            requirements=requirements,
            selected=str(kept["selected"]["reason"]),
            selected_epoch=int(kept["selected"]["epoch"]),
            splits=tuple(
                replace(_split(name, part, kept["trained_on"]), chose_the_model=name == kept["selected"]["split"])
                for name, part in kept["splits"].items()
            ),
            distributions=tuple(_distributions(folder / VALUES, measures, requirements)),
        )


def read_certificate(folder: Path) -> Certified | None:
    """The certificate that :func:`keep_certificate` put there, if it did."""
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    stored = read_json(path, "a certificate")
    with decoding(path, "a certificate"):
        nested = {"constraints", "licq", "sentence", "multipliers"}
        facts = {FACTS.get(name, name): value for name, value in stored.items() if name not in nested}
        facts |= {f"constraint {name}": part for name, part in stored["constraints"].items()}
        return Certified(str(stored["sentence"]), {**facts, "E-LICQ": stored["licq"]})


def read_multipliers(folder: Path) -> tuple[Multipliers, ...]:
    """The multipliers of a run: those of its certificate or, without one, the method's own estimates."""
    path = folder / CERTIFICATE
    if path.exists():
        stored = read_json(path, "a certificate")
        with decoding(path, "a certificate"):
            return tuple(_multipliers(name, part) for name, part in stored["multipliers"].items())
    if not (folder / VALUES).exists():
        return ()
    found = _read_values(folder / VALUES, MULTIPLIERS)
    return tuple(long_tail(name, values) for name, values in found.items())


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
    try:
        with decoding(path, "the values of an audit"), safe_open(path, framework="np") as file:
            start = f"{prefix}/"
            names = [name for name in file.keys() if name.startswith(start)]  # noqa: SIM118 - not a dictionary
            return {name.removeprefix(start): file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise RecordError(f"{path}: cannot be read as the values of an audit: {error}") from error


def _constraint_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each constraint has its tau."""
    return list(dict.fromkeys(name.partition("/")[2] for row in rows for name in row if name.startswith("tau/")))


def _requirement(name: str, part: Mapping[str, Any]) -> Requirement:
    return Requirement(
        name,
        measure=str(part["measure"]),
        formula=str(part["formula"]),
        lower=number(part["lower"]),
        upper=number(part["upper"]),
        margin=float(part["margin"]),
    )


def _method(described: Mapping[str, Any]) -> str:
    parts = [f"{key} {value}" for key, value in described.items() if key not in ("type", "constraints")]
    return ", ".join([str(described["type"]), *parts])


def _split(name: str, part: Mapping[str, Any], trained_on: str | None) -> Split:
    confidences = [float(found["confidence"]) for found in part["constraints"].values()]
    return Split(
        name,
        samples=int(part["samples"]),
        objective=float(part["objective"]),
        satisfied=float(part["satisfied"]),
        trained_on=name in (trained_on, "train"),  # a part of the training data is not unseen either
        means={measure: float(mean) for measure, mean in part["means"].items() if mean is not None},
        constraints={
            constraint: Finding(
                violated=int(found["violated"]),
                satisfied=float(found["satisfied"]),
                mean_violation=float(found["mean_violation"]),
                worst=float(found["worst"]),
                violators=tuple((int(index), float(by)) for index, by in part["violators"][constraint]),
            )
            for constraint, found in part["constraints"].items()
        },
        confidence=min(confidences, default=0.95),
    )


def _multipliers(constraint: str, part: Mapping[str, Any]) -> Multipliers:
    return Multipliers(
        constraint,
        total=int(part["total"]),
        positive=int(part["positive"]),
        ranks=tuple(map(int, part["ranks"])),
        values=tuple(map(float, part["values"])),
    )


def _size(model: Mapping[str, Sequence[int]]) -> str:
    return f"{len(model):,} tensors of {sum(math.prod(shape) for shape in model.values()):,} numbers in all"
