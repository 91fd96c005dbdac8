"""Folders of watermark training and of its evaluation, read for a report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from samplewise import report
from samplewise.errors import CheckpointError, DataError
from samplewise.report import Bars, Gallery, RunReport, Table, count, percent, share
from samplewise.storage import decoding, load_state, read_json
from studies.records import read_fit_within
from studies.watermark.evaluation.measure import REPRESENTATIONS, Measured
from studies.watermark.evaluation.output import FORMAT, REPORT, WORST, run_folder
from studies.watermark.evaluation.summary import kept_floor, summarise
from studies.watermark.pipeline import CONSTRAINT
from studies.watermark.recipe import RECIPE_FILE

GAIN = 20  # changes are shown so many times over, around grey
GALLERIES = {"psnr": "Lowest PSNR", "bit_error": "Most bit errors"}


def read_training(folder: Path) -> Sequence[RunReport] | None:
    """The run in a folder of ``studies watermark train``, ended or not; None if the folder is of another kind."""
    found = read_fit_within(folder, RECIPE_FILE, "recipe")
    if found is None:
        return None
    run, recipe = found
    with decoding(folder / RECIPE_FILE.name, "a recipe"):
        return [replace(run, problem=_problem(recipe))]


def read_evaluation(folder: Path) -> Sequence[RunReport] | None:
    """The runs that ``studies watermark evaluate`` has evaluated; None if the folder is of another kind."""
    path = folder / REPORT
    if not path.exists():
        return None
    stored = read_json(path, "a report of watermark evaluate")
    if stored.get("format") != FORMAT:
        return None
    with decoding(path, "a report of watermark evaluate"):
        return [_evaluated(folder, stored, run) for run in stored["runs"]]


def _inside(folder: Path, path: Path) -> Path:
    """The path of a file, or an error if it leads out of the folder: a report may come from anyone."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder / REPORT}: names {str(path)!r}, which is not a file of this folder")
    return path


def _evaluated(folder: Path, stored: Mapping[str, Any], run: Mapping[str, Any]) -> RunReport:
    recipe, part, floor = run["recipe"], str(stored["part"]), run["floor"]
    measured = Measured.read(_inside(folder, folder / str(run["per_image"])), int(recipe["bits"]))
    confidence, compared = float(run["confidence"]), int(run["compared"])
    found = summarise(measured, floor, confidence=confidence, n_comparisons=compared)
    notes = ["Measured on 8-bit grey files that were really written and read back."]
    if run["evaluated_by"] == "tool":
        written = run["written"]
        notes = [
            f"Files that the tool wrote and read, for {count(written['held'])} of {count(written['samples'])} images; "
            "it refused the others. Bit errors are those before correction."
        ]
    else:
        notes.append("The network's own residual, as the paper evaluates it; what the tool makes of it is not this.")
    if trained_on := int((~measured.fresh).sum()):
        notes.append(f"{count(trained_on)} of the images may have been trained on, from which no bound follows.")
    bounds = [] if floor is None else [float(floor)]
    if bounds:
        patients = found["quality"]["grey"]["patients_satisfied"]
        others = patients["at_least"]
        bound = (
            "" if others is None else f": at {percent(confidence)} confidence at least {share(others)} of unseen ones"
        )
        notes.append(
            f"Images of one patient are not independent. Of the {count(patients['samples'])} patients "
            f"{share(patients['share'])} have no image below the floor{bound}."
        )
    return RunReport(
        name=str(run["label"]),
        folder=str(folder),
        problem=_problem(recipe),
        requirements=tuple(
            report.Requirement(CONSTRAINT, CONSTRAINT, f"PSNR of the 8-bit file >= {bound:g} dB", lower=bound)
            for bound in bounds
        ),
        method=f"{recipe['network']}, trained with the noise {recipe['noise']}",
        selected=str(run["training"].get("selected", {}).get("reason", "the trained network")),
        objective="bit error",
        notes=tuple(notes),
        splits=tuple(_splits(part, bounds, measured, confidence, compared)),
        distributions=tuple(
            report.distribution(name, {part: measured.columns[f"grey/{name}"]}, shown)
            for name, shown in ((CONSTRAINT, bounds), ("bit_error", []))
        ),
        bars=(_attacks(found),) if found["attacks"] else (),
        tables=(_bit_errors(found),),
        galleries=tuple(_galleries(folder, run, part, measured)),
        settings={"recipe": recipe, "data": run["data"], "part": part},
        provenance=dict(stored["provenance"]),
    )


def _problem(recipe: Mapping[str, Any]) -> str:
    return f"Hide {recipe['bits']:,} bits in each image, to be read back with as few errors as can be"


def _splits(
    part: str, bounds: Sequence[float], measured: Measured, confidence: float, compared: int
) -> Iterator[report.Audited]:
    """Audits of the images that were not trained on, and of those that were."""
    below = np.maximum(0.0, max(bounds, default=-np.inf) - kept_floor(measured, "grey"))
    named = {part: (measured.fresh, compared), f"{part}, trained on": (~measured.fresh, math.inf)}
    for name, (flags, n_comparisons) in named.items():
        if not flags.any():
            continue
        missed, numbers = below[flags], measured.numbers[flags]
        grey = {key: measured.columns[f"grey/{key}"][flags] for key in ("bit_error", "psnr", "ssim", "max_difference")}
        worst = [int(place) for place in np.argsort(-missed, kind="stable") if missed[place] > 0]
        found = report.Finding(
            violated=len(worst),
            satisfied=1.0 - len(worst) / len(missed),
            mean_violation=float(missed.mean()),
            worst=float(missed.max()),
            violators=tuple((int(numbers[place]), float(missed[place])) for place in worst[:20]),
        )
        yield report.Audited(
            part if flags.all() else name,
            samples=len(missed),
            objective=float(grey.pop("bit_error").mean()),
            satisfied=found.satisfied,
            n_comparisons=n_comparisons,
            constraints={CONSTRAINT: found} if bounds else {},
            means={key: float(values.mean()) for key, values in grey.items() if not np.isnan(values).any()},
            confidence=confidence,
        )


def _attacks(found: Mapping[str, Any]) -> Bars:
    series: dict[str, tuple[float, ...]] = {}
    for each in found["attacks"]:
        kind = REPRESENTATIONS[each["representation"]]
        series[kind] = (*series.get(kind, ()), float(each["reading"]["bit_error_mean"]))
    attacked = found["attacks"][0]["reading"]["error_free"]["samples"]
    return Bars(
        "Bit error after attacks",
        f"Mean over {count(attacked)} images; one half is what guessing gives.",
        unit="mean bit error",
        names=tuple(dict.fromkeys(str(each["attack"]) for each in found["attacks"])),
        series=series,
    )


def _bit_errors(summary: Mapping[str, Any]) -> Table:
    rows = [(f"as written, {REPRESENTATIONS[kind]}", found) for kind, found in summary["reading"].items()]
    rows += [
        (f"{each['attack']}, {REPRESENTATIONS[each['representation']]}", each["reading"]) for each in summary["attacks"]
    ]

    def others(found: Mapping[str, Any]) -> str:
        return report.number(None) if found["at_least"] is None else share(found["at_least"])

    heading = f"at least ({percent(summary['confidence'])}, all rows at once)"
    return Table(
        "How the messages were read",
        ("", "images", "mean bit error", "worst", "whole message right", heading, "usable bits"),
        tuple(
            (
                name,
                count(found["error_free"]["samples"]),
                share(found["bit_error_mean"]),
                share(found["bit_error_worst"]),
                share(found["error_free"]["share"]),
                others(found["error_free"]),
                f"{found['usable_bits']:.0f}",
            )
            for name, found in rows
        ),
    )


def _galleries(folder: Path, run: Mapping[str, Any], part: str, measured: Measured) -> list[Gallery]:
    """The worst images; an evaluation made before they were kept has none."""
    path = _inside(folder, run_folder(folder, str(run["name"])) / WORST)
    if not path.exists():
        return []
    try:
        kept = load_state(path)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    places = {int(number): place for place, number in enumerate(measured.numbers)}
    galleries = []
    with decoding(path, "the worst images"):
        for kind, found in kept.items():
            pictures = []
            originals, marks = found["original"].numpy(), found["marked"].numpy()
            for number, original, marked in zip(found["number"].tolist(), originals, marks, strict=True):
                place = places[number]
                psnr, wrong = (measured.columns[f"grey/{name}"][place] for name in ("psnr", "bit_error"))
                change = (128.0 + GAIN * (marked.astype(np.float64) - original)).clip(0, 255).astype(np.uint8)
                images = {"original": original, "marked": marked, f"change x {GAIN}": change}
                pictures.append(
                    report.Picture(f"{measured.names[place]}: {psnr:.2f} dB, bit error {share(wrong)}", images)
                )
            title = f"{GALLERIES[kind]} on {part}: original, marked, change x {GAIN}"
            galleries.append(Gallery(title, tuple(pictures)))
    return galleries
