"""The folder that :func:`samplewise.fit` writes, read for a report; and the certificate, put there to be shown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samplewise.certificate import Certificate
from samplewise.checkpoint import write_json
from samplewise.errors import DataError
from samplewise.history import History
from samplewise.report.reading import number, read_curves, read_json, reading
from samplewise.report.run import Certified, Distribution, Finding, Multipliers, Requirement, RunReport, Split
from samplewise.settings_file import SettingsFile
from samplewise.training.findings import FORMAT, long_tail
from samplewise.training.run import FINDINGS, IDENTITY

__all__ = ["keep_certificate", "read_certificate", "read_fit", "read_fit_within", "read_multipliers"]

CERTIFICATE = "certificate.json"
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
    tails = {name: long_tail(values) for name, values in certificate.multipliers.items()}
    write_json(Path(folder) / CERTIFICATE, {**certificate.to_dict(), "multipliers": tails})


def read_fit(folder: Path) -> Sequence[RunReport] | None:
    """The run in a folder of ``fit``, whether it has ended or not; None if the folder is of another kind."""
    identity = folder / IDENTITY
    if not identity.exists():
        return None
    stored = read_json(identity)
    if "asked" not in stored:
        return None
    with reading(folder / "history.jsonl"):
        rows = History.read(folder).rows
        if not rows:
            raise DataError(f"{folder}: the run has not ended an epoch yet; make the report later")
        curves = tuple(read_curves(rows, _constraint_names(rows)))
    with reading(identity):
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
    return [_with_findings(run, folder / FINDINGS) if (folder / FINDINGS).exists() else run]


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
    stored = read_json(path)
    if stored.get("format") != settings_file.format:
        return None
    found = read_fit(folder / "fit")
    if found is None:
        raise DataError(f"{folder}: its training has not begun yet; make the report later")
    (run,) = found
    with reading(path):
        settings = dict(stored["settings"])
    named = replace(run, name=folder.resolve().name, folder=str(folder), settings={key: settings, **run.settings})
    return named, settings


def _with_findings(run: RunReport, path: Path) -> RunReport:
    kept = read_json(path)
    with reading(path):
        if kept["format"] != FORMAT:
            raise ValueError(f"expected the format {FORMAT}, got {kept['format']!r}")
        return replace(
            run,
            requirements=tuple(_requirement(name, part) for name, part in kept["constraints"].items()),
            selected=str(kept["selected"]["reason"]),
            selected_epoch=int(kept["selected"]["epoch"]),
            splits=tuple(
                replace(_split(name, part, kept["trained_on"]), chose_the_model=name == kept["selected"]["split"])
                for name, part in kept["splits"].items()
            ),
            distributions=tuple(_distribution(name, part) for name, part in kept["distributions"].items()),
        )


def read_certificate(folder: Path) -> Certified | None:
    """The certificate that :func:`keep_certificate` put there, if it did."""
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    stored = read_json(path)
    with reading(path):
        nested = {"constraints", "licq", "sentence", "multipliers"}
        facts = {FACTS.get(name, name): value for name, value in stored.items() if name not in nested}
        facts |= {f"constraint {name}": part for name, part in stored["constraints"].items()}
        return Certified(str(stored["sentence"]), {**facts, "E-LICQ": stored["licq"]})


def read_multipliers(folder: Path) -> tuple[Multipliers, ...]:
    """The multipliers of a run: those of its certificate or, without one, the method's own estimates."""
    for path in (folder / CERTIFICATE, folder / FINDINGS):
        if path.exists():
            stored = read_json(path)
            with reading(path):
                return tuple(_multipliers(name, part) for name, part in stored["multipliers"].items())
    return ()


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
    )


def _distribution(measure: str, part: Mapping[str, Any]) -> Distribution:
    return Distribution(
        measure,
        edges=tuple(map(float, part["edges"])),
        counts={split: tuple(map(float, counts)) for split, counts in part["counts"].items()},
        beyond={split: (int(part["below"][split]), int(part["above"][split])) for split in part["counts"]},
    )


def _multipliers(constraint: str, part: Mapping[str, Any]) -> Multipliers:
    return Multipliers(
        constraint,
        total=int(part["total"]),
        positive=int(part["positive"]),
        ranks=tuple(map(int, part["rank"])),
        values=tuple(map(float, part["value"])),
    )


def _size(model: Mapping[str, Sequence[int]]) -> str:
    return f"{len(model):,} tensors of {sum(math.prod(shape) for shape in model.values()):,} numbers in all"
