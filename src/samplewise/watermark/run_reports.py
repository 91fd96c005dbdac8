"""Folders of watermark training and of its evaluation, read for a report."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from samplewise.checkpoint import load_state
from samplewise.data.records import decoding, read_json
from samplewise.errors import CheckpointError, DataError
from samplewise.report.fits import read_fit_within
from samplewise.report.run import (
    Bars,
    Distribution,
    Finding,
    Gallery,
    Picture,
    Requirement,
    RunReport,
    Split,
    Table,
    distribution,
)
from samplewise.report.words import count, share
from samplewise.watermark.judging.output import FORMATS, REPORT, WORST, run_folder
from samplewise.watermark.pipeline import CONSTRAINT
from samplewise.watermark.training import RECIPE_FILE

__all__ = ["read_evaluation", "read_training"]

Columns = dict[str, np.ndarray[Any, np.dtype[np.float64]]]
GAIN = 20  # changes are shown so many times over, around grey
WAYS = {"grey": "grey file", "rgb": "RGB file", "float": "floats, no file"}


def read_training(folder: Path) -> Sequence[RunReport] | None:
    """The run in a folder of ``samplewise watermark train``, ended or not; None if the folder is of another kind."""
    found = read_fit_within(folder, RECIPE_FILE, "recipe")
    if found is None:
        return None
    run, recipe = found
    with decoding(folder / RECIPE_FILE.name, "a recipe"):
        return [replace(run, problem=_problem(recipe))]


def read_evaluation(folder: Path) -> Sequence[RunReport] | None:
    """The runs that ``samplewise watermark evaluate`` has judged; None if the folder is of another kind."""
    path = folder / REPORT
    if not path.exists():
        return None
    stored = read_json(path, "a report of watermark evaluate")
    if stored.get("format") not in FORMATS:
        return None
    with decoding(path, "a report of watermark evaluate"):
        return [_judged(folder, stored, run) for run in stored["runs"]]


def _floor(stored: Mapping[str, Any], run: Mapping[str, Any]) -> float | None:
    """What a run was judged by; in the first format a baseline without a floor has the one that its recipe names."""
    unasked = stored["format"] == FORMATS[0] and run["recipe"]["image_loss"] and run["floor"] == run["recipe"]["floor"]
    return None if unasked or run["floor"] is None else float(run["floor"])


def _inside(folder: Path, name: str) -> Path:
    """A file that a report names, which may have come from anywhere."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder / REPORT}: names {name!r}, which is not a file of this folder")
    return path


def _judged(folder: Path, stored: Mapping[str, Any], run: Mapping[str, Any]) -> RunReport:
    names, columns = _images(_inside(folder, str(run["per_image"])))
    recipe, part, floor = run["recipe"], str(stored["part"]), _floor(stored, run)
    notes = ["Measured on 8-bit grey files that were really written and read back."]
    requirements: tuple[Requirement, ...] = ()
    if floor is not None:
        patients = run["quality"]["grey"]["patients_satisfied"]
        requirements = (Requirement(CONSTRAINT, CONSTRAINT, f"PSNR of the 8-bit file >= {floor:g} dB", lower=floor),)
        notes.append(
            f"Images of one patient are not independent. Of the {count(patients['samples'])} patients "
            f"{share(patients['share'])} have no image below the floor: at {run['confidence']:.0%} confidence at least "
            f"{share(patients['at_least'])} of all such patients."
        )
    chosen = run["training"].get("selected", {})
    return RunReport(
        name=str(run["label"]),
        folder=str(folder),
        problem=_problem(recipe),
        requirements=requirements,
        method=f"{recipe['network']}, trained with the noise {recipe['noise']}",
        selected=str(chosen.get("reason", "the trained network")),
        objective="bit error",
        notes=tuple(notes),
        splits=(_split(run, part, floor, columns),),
        distributions=tuple(_spread(part, floor, columns)),
        bars=(_attacks(run),) if run["attacks"] else (),
        tables=(_bit_errors(run),),
        galleries=tuple(_galleries(folder, run, part, names, columns)),
        settings={"recipe": recipe, "data": run["data"], "part": part},
        provenance=dict(stored["provenance"]),
    )


def _problem(recipe: Mapping[str, Any]) -> str:
    return f"Hide {recipe['bits']:,} bits in each image, to be read back with as few errors as can be"


def _images(path: Path) -> tuple[dict[int, str], Columns]:
    """Name by number, and the columns of numbers; NaN where an image was not attacked."""
    with decoding(path, "a list of judged images"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        numbers = [name for name in rows[0] if name not in ("name", "patient")]
        columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in numbers}
        return {int(row["number"]): row["name"] for row in rows}, columns


def _split(run: Mapping[str, Any], part: str, floor: float | None, columns: Columns) -> Split:
    below = np.maximum(0.0, (-np.inf if floor is None else floor) - columns["grey/psnr"])
    worst = [int(place) for place in np.argsort(-below, kind="stable") if below[place] > 0]
    data, satisfied = run["data"], 1.0 - len(worst) / len(below)
    return Split(
        part,
        samples=len(below),
        objective=float(columns["grey/bit_error"].mean()),
        satisfied=satisfied,
        # Unknown splits count as seen: no bound is better than one that does not hold.
        trained_on=data["trained_on_these"] and (part in ("train", "all") or data["split_as_trained"] is not True),
        constraints={}
        if floor is None
        else {
            CONSTRAINT: Finding(
                violated=len(worst),
                satisfied=satisfied,
                mean_violation=float(below.mean()),
                worst=float(below.max()),
                violators=tuple((int(columns["number"][place]), float(below[place])) for place in worst[:20]),
            )
        },
        means={
            name: float(columns[f"grey/{name}"].mean())
            for name in ("psnr", "ssim", "max_difference")
            if not np.isnan(columns[f"grey/{name}"]).any()
        },
        confidence=float(run["confidence"]),
    )


def _spread(part: str, floor: float | None, columns: Columns) -> list[Distribution]:
    shown: tuple[tuple[str, list[float]], ...] = ((CONSTRAINT, [] if floor is None else [floor]), ("bit_error", []))
    return [distribution(name, {part: columns[f"grey/{name}"]}, bounds) for name, bounds in shown]


def _attacks(run: Mapping[str, Any]) -> Bars:
    names = tuple(dict.fromkeys(str(each["attack"]) for each in run["attacks"]))
    series: dict[str, list[float]] = {}
    for each in run["attacks"]:
        series.setdefault(WAYS[each["way"]], []).append(float(each["reading"]["bit_error_mean"]))
    attacked = run["attacks"][0]["reading"]["error_free"]["samples"]
    return Bars(
        "Bit error after attacks",
        f"Mean over {count(attacked)} images; one half is what guessing gives.",
        unit="mean bit error",
        names=names,
        series={way: tuple(values) for way, values in series.items()},
    )


def _bit_errors(run: Mapping[str, Any]) -> Table:
    rows = [(f"as written, {WAYS[way]}", found) for way, found in run["reading"].items()]
    rows += [(f"{each['attack']}, {WAYS[each['way']]}", each["reading"]) for each in run["attacks"]]
    return Table(
        "How the messages were read",
        (
            "",
            "images",
            "mean bit error",
            "worst",
            "whole message right",
            f"at least ({run['confidence']:.0%})",
            "usable bits",
        ),
        tuple(
            (
                name,
                count(found["error_free"]["samples"]),
                f"{found['bit_error_mean']:.3g}",
                f"{found['bit_error_worst']:.3g}",
                share(found["error_free"]["share"]),
                share(found["error_free"]["at_least"]),
                f"{found['usable_bits']:.0f}",
            )
            for name, found in rows
        ),
    )


def _galleries(
    folder: Path, run: Mapping[str, Any], part: str, names: Mapping[int, str], columns: Columns
) -> list[Gallery]:
    """The worst images; an evaluation made before they were kept has none."""
    path = _inside(folder, str((run_folder(folder, str(run["name"])) / WORST).relative_to(folder)))
    if not path.exists():
        return []
    try:
        kept = load_state(path)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    place = {int(number): i for i, number in enumerate(columns["number"])}
    titles = {"psnr": f"Lowest PSNR on {part}", "bit_error": f"Most bit errors on {part}"}
    galleries = []
    with decoding(path, "the worst images"):
        for kind, found in kept.items():
            pictures = []
            for number, original, marked in zip(
                found["number"].tolist(), found["original"].numpy(), found["marked"].numpy(), strict=True
            ):
                psnr, wrong = (columns[f"grey/{name}"][place[number]] for name in ("psnr", "bit_error"))
                change = 128.0 + GAIN * (marked.astype(np.float64) - original)
                images = {
                    "original": original,
                    "marked": marked,
                    f"change x {GAIN}": change.clip(0, 255).astype(np.uint8),
                }
                pictures.append(Picture(f"{names[number]}: {psnr:.2f} dB, bit error {wrong:.3g}", images))
            galleries.append(Gallery(f"{titles[kind]}: original, marked, change x {GAIN}", tuple(pictures)))
    return galleries
