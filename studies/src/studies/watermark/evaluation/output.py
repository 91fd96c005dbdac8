"""The files of an evaluation: ``report.json``, a table of images for each run, and the table of runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floormark import Watermarker
from samplewise.cli import note
from samplewise.problem import evaluation_mode
from samplewise.storage import provenance, save_state, write_json, write_text
from studies.pictures import PictureData, Store
from studies.pictures.store import SPLIT
from studies.records import markdown_table
from studies.watermark.evaluation.measure import Flags, Measured, mark
from studies.watermark.evaluation.shipped import ship
from studies.watermark.evaluation.summary import Summary, kept_floor
from studies.watermark.networks import Lattice
from studies.watermark.operators import Pixels, as_pixels
from studies.watermark.training import Run

FORMAT = "samplewise-watermark-evaluation-4"
REPORT = "report.json"
FILES = {REPORT, "table.md", "figures", "runs", "store"}
"""All that an evaluation's folder holds."""
IMAGES_CSV, MARKED, WORST = "images.csv", "marked", "worst.safetensors"
"""In the folder of a run: the table of its images, the marked images if they are kept, and those it does worst on."""
WORST_KEPT = 6  # images of each kind


@dataclass(frozen=True)
class RunEvaluation:
    """A run, the pictures it was evaluated on, and what was found."""

    run: Run
    data: PictureData
    measured: Measured
    summary: Summary


def run_folder(out: Path, name: str) -> Path:
    """The folder of one run's files: :data:`IMAGES_CSV`, :data:`MARKED` and :data:`WORST`."""
    return out / "runs" / name


def split_of(store: Store) -> dict[str, Any] | None:
    """Rule and seed of a store's split; None for the few pictures that cannot be split."""
    return store.split.origin if (store.folder / SPLIT).exists() else None


def re_embed(one: RunEvaluation, places: Sequence[int]) -> tuple[Pixels, Pixels]:
    """Covers and marked images ``(K, H, W)`` as grey files hold them, marked once more as in the evaluation."""
    if isinstance(one.run.network, Lattice):
        marker, rows = Watermarker(one.run.network.in_the_tool()), one.data.rows[list(places)].tolist()
        originals = one.data.store.images[rows]
        floor = one.summary["floor"]
        return originals, np.stack([ship(marker, *each, floor) for each in zip(originals, rows, strict=True)])
    images, numbers = one.data.take(torch.as_tensor(places))
    device = next(one.run.network.parameters()).device
    with evaluation_mode(one.run.network):
        covers, _, marked = mark(one.run.network, images.to(device), numbers.to(device))
    return as_pixels(covers, "grey"), as_pixels(marked, "grey")


def write_evaluation(out: Path, one: RunEvaluation) -> None:
    """Write the table of a run's images, and those with the lowest PSNR and with the most bit errors, if any."""
    folder, columns = run_folder(out, one.run.name), one.measured.columns
    one.measured.write(folder / IMAGES_CSV)
    error = columns["grey/bit_error"]
    worst = {
        "psnr": np.argsort(kept_floor(one.measured, "grey"), kind="stable")[:WORST_KEPT].tolist(),
        "bit_error": [place for place in np.argsort(-error, kind="stable")[:WORST_KEPT].tolist() if error[place] > 0],
    }
    kept = {}
    for kind, places in worst.items():
        if places:
            number, (covers, marked) = one.measured.numbers[places], re_embed(one, places)
            named = {"number": number, "original": covers, "marked": marked}
            kept[kind] = {name: torch.from_numpy(values) for name, values in named.items()}
    save_state(folder / WORST, kept)


def write_report(
    out: Path, evaluations: Sequence[RunEvaluation], *, part: str, seed: int, device: str, figures: Sequence[Path]
) -> dict[str, Any]:
    """Write ``report.json`` and the table of runs, at least one, into ``out``; returns what the report holds."""
    runs = [report_entry(out, one) for one in evaluations]
    report = {
        "format": FORMAT,
        "part": part,
        "runs": runs,
        "figures": [path.relative_to(out).as_posix() for path in figures],
        "provenance": provenance(seed=seed, device=device),
    }
    write_text(out / "table.md", table_text(runs) + "\n")
    write_json(out / REPORT, report)
    return report


def report_entry(out: Path, one: RunEvaluation) -> dict[str, Any]:
    """All that a report in ``out`` says of a run: where it comes from, its summary, and where its files are."""
    run, store, folder = one.run, one.data.store, run_folder(out, one.run.name)
    return {
        "name": run.name,
        "label": run.label,
        "folder": run.folder.as_posix(),
        "recipe": asdict(run.recipe),
        "training": run.result,
        "data": {
            "folder": store.folder.as_posix(),
            "fingerprint": store.fingerprint,
            "pictures": len(store),
            "split": split_of(store),
            "trained_on": one.summary["trained_on"],
            "training_known": run.seen is not None,
        },
        **one.summary,
        "per_image": (folder / IMAGES_CSV).relative_to(out).as_posix(),
        "marked_images": (folder / MARKED).relative_to(out).as_posix() if (folder / MARKED).exists() else None,
    }


def seen_by(run: Run, data: PictureData) -> tuple[Flags, int]:
    """A mask of the pictures that a run was trained on, ``(n,)``, and the number of networks it compared on the others.

    The validation part selects among the audited rounds. Where a run does not say what it was trained on, all pictures
    count as trained on: rather no bound than one that does not hold.
    """
    if run.seen is None:
        return np.ones(len(data), np.bool_), 1
    trained = run.seen["train"].among(data)
    chose = bool((run.seen["validation"].among(data) & ~trained).any())
    return trained, math.ceil(run.recipe.last_round / run.recipe.audit_every) if chose else 1


def warn_of_seen(run: Run, pictures: PictureData) -> None:
    """Say so if a run was trained on some of the pictures that it is evaluated on, or may have been."""
    if run.seen is None:
        note(f"{run.name}: does not say what it was trained on, so nothing follows for unseen images: train it anew")
    elif trained := int(seen_by(run, pictures)[0].sum()):
        note(
            f"{run.name}: was trained on {trained:,} of these {len(pictures):,} images or on others of their patients; "
            "nothing follows from them for unseen images"
        )


RUN_COLUMNS = (
    ("run", "name", ""),
    ("network", "recipe/network", ""),
    ("bits", "recipe/bits", ""),
    ("size", "recipe/size", ""),
    ("floor (dB)", "floor", "g"),
    ("noise", "recipe/noise", ""),
    ("images", "images", ""),
    ("marked", "written/share", ".2%"),
    ("PSNR mean", "quality/grey/psnr_mean", ".2f"),
    ("PSNR min", "quality/grey/psnr_min", ".2f"),
    ("meet the floor", "quality/grey/satisfied/share", ".2%"),
    ("at least", "quality/grey/satisfied/at_least", ".2%"),
    ("BER", "reading/grey/bit_error_mean", ".3%"),
    ("error-free", "reading/grey/error_free/share", ".2%"),
    ("usable bits", "reading/grey/usable_bits", ".1f"),
    ("BER (RGB file)", "reading/rgb/bit_error_mean", ".3%"),
    ("BER (floats)", "reading/float/bit_error_mean", ".3%"),
    ("max diff", "quality/grey/max_difference", ".0f"),
    ("SSIM", "quality/grey/ssim_mean", ".4f"),
    ("training (min)", "training/minutes", ".1f"),
)
"""The table of runs: a new column takes a line here. Its heading, where the report has the number, and its format."""


def table_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """The table of a report's runs as Markdown, with what its columns mean; no column is empty for all runs."""

    def cell(run: Mapping[str, Any], path: str, style: str) -> str:
        found: Any = run
        for key in path.split("/"):
            found = None if found is None else found.get(key)
        return "" if found is None else format(found, style)

    rows = [[cell(run, path, style) for _, path, style in RUN_COLUMNS] for run in map(_with_minutes, runs)]
    columns = zip((heading for heading, _, _ in RUN_COLUMNS), *rows, strict=True)
    table = zip(*(column for column in columns if any(column[1:])), strict=True)
    notes = [
        "PSNR, SSIM, largest difference (grey levels) and BER are those of the 8-bit grey PNG files as written and "
        f"read back. At least: what holds for images like these with {runs[0]['confidence']:.0%} confidence "
        "(exact, each run for itself, images taken as independent). Usable bits: L(1 - H2(BER)).",
    ]

    for text, applies, more in REMARKS:
        if named := ", ".join(run["name"] + more.format(**run) for run in runs if applies(run)):
            notes.append(f"{text}: {named}.")
    return "\n\n".join([markdown_table(table), *notes])


def _with_minutes(run: Mapping[str, Any]) -> dict[str, Any]:
    seconds = run["training"].get("seconds")
    return {**run, "training": {"minutes": None if seconds is None else seconds / 60}}


REMARKS: tuple[tuple[str, Callable[[Mapping[str, Any]], object], str], ...] = (
    (
        "As the tool ships it (embed and extract: strength up to the floors, error correction, search), of the images "
        "that it marks",
        lambda run: run["evaluated_by"] == "tool",
        "",
    ),
    (
        "By the network's own residual, as the paper evaluates it, which is not what embed makes of it",
        lambda run: run["evaluated_by"] == "network",
        "",
    ),
    (
        "At least, corrected for the rounds that were compared on these images",
        lambda run: run["compared"] > 1,
        " ({compared})",
    ),
    (
        "Trained on some of these images or on others of their patients, from which nothing follows for unseen ones",
        lambda run: run["trained_on"] and run["data"]["training_known"],
        " ({trained_on:,} of {images:,})",
    ),
    (
        "It is not known what it was trained on, so that nothing follows for unseen images",
        lambda run: not run["data"]["training_known"],
        "",
    ),
    ("Trained without a floor, on a weighted image loss", lambda run: run["recipe"]["image_loss"], ""),
)
"""Below the table: a sentence, the runs it is about, and what is said of each behind its name."""
