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
from studies.records import markdown_table, write_csv
from studies.watermark.evaluation.measure import Flags, Measured, mark
from studies.watermark.evaluation.shipped import ship
from studies.watermark.evaluation.summary import Summary, kept_floor
from studies.watermark.networks import Lattice
from studies.watermark.operators import Pixels, as_pixels
from studies.watermark.training import Run

FORMAT = "samplewise-watermark-evaluation-4"
REPORT = "report.json"
FILES = {REPORT, "table.csv", "table.md", "figures", "runs", "store"}
"""All that an evaluation's folder holds."""
IMAGES_CSV, MARKED, WORST = "images.csv", "marked", "worst.safetensors"
"""In the folder of a run: the table of its images, the marked images if they are kept, and those it does worst on."""
WORST_KEPT = 6  # images of each kind

EXPLANATIONS = {
    "evaluated_by": "tool: what embed writes and extract reads, with the strength that the floors allow, error "
    "correction and registration. network: the residual as the network gives it, as in the paper.",
    "grey": "An 8-bit grey PNG file, written and read back: clamped, rounded, the mean of the channels where there are "
    "three. 120 dB stands for a file equal to its cover.",
    "rgb": "An 8-bit RGB file, for networks with three channels: a grey file loses what differs between them.",
    "float": "As in the paper: all channels as the network gives them, neither clamped nor rounded. No file holds it.",
    "message": "A function of the image's row in the store. Bit errors are those before correction; one half stands "
    "for a message that the tool does not read.",
    "trained_on": "Images whose pixels or patient were in the training part; all where the run does not say.",
    "satisfied": "At least: exact Clopper-Pearson lower bound for images like these, from those that were not trained "
    "on; corrected (Bonferroni) for the networks compared on them. Images of one patient are not independent, which "
    "the bound over patients takes into account. Of the tool: among the images it marks.",
    "error_free": "The whole message is right, in the tool after correction. At least: all of a run hold at once.",
    "usable_bits": "Capacity of a binary symmetric channel, L(1 - H2(BER)), at the mean bit error, and by image.",
    "attacks": "Done to the files as written, each image with its own seed.",
}


@dataclass(frozen=True)
class RunEvaluation:
    """A run, the pictures it was evaluated on, and what was found."""

    run: Run
    data: PictureData
    measured: Measured
    summary: Summary


def run_folder(out: Path, name: str) -> Path:
    """Where the files of one run are: :data:`IMAGES_CSV`, :data:`MARKED` and :data:`WORST`."""
    return out / "runs" / name


def split_of(store: Store) -> dict[str, Any] | None:
    """Rule and seed of a store's split; None for the few pictures that cannot be split."""
    return store.split.origin if (store.folder / SPLIT).exists() else None


def re_embed(one: RunEvaluation, places: Sequence[int]) -> tuple[Pixels, Pixels]:
    """Covers and marked images ``(K, H, W)`` as grey files hold them, marked once more as in the evaluation."""
    if isinstance(one.run.network, Lattice):
        marker, rows = Watermarker(one.run.network), one.data.rows[list(places)].tolist()
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
        "how": EXPLANATIONS,
        "part": part,
        "runs": runs,
        "figures": [path.relative_to(out).as_posix() for path in figures],
        "table": "table.csv",
        "provenance": provenance(seed=seed, device=device),
    }
    write_csv(out / "table.csv", table_rows(runs))
    write_text(out / "table.md", table_text(runs) + "\n")
    write_json(out / REPORT, report)
    return report


def report_entry(out: Path, one: RunEvaluation) -> dict[str, Any]:
    """All that a report in ``out`` says of a run: where it comes from, its summary, and where its files are."""
    run, folder = one.run, run_folder(out, one.run.name)
    return {
        "name": run.name,
        "label": run.label,
        "folder": run.folder.as_posix(),
        "recipe": asdict(run.recipe),
        "training": run.result,
        "data": evaluated_on(run, one),
        **one.summary,
        "per_image": (folder / IMAGES_CSV).relative_to(out).as_posix(),
        "marked_images": (folder / MARKED).relative_to(out).as_posix() if (folder / MARKED).exists() else None,
    }


def evaluated_on(run: Run, one: RunEvaluation) -> dict[str, Any]:
    """The pictures that a run is evaluated on, and how many of them it was trained on."""
    store = one.data.store
    return {
        "folder": store.folder.as_posix(),
        "fingerprint": store.fingerprint,
        "pictures": len(store),
        "split": split_of(store),
        "trained_on": one.summary["trained_on"],
        "training_known": run.seen is not None,
    }


def seen_by(run: Run, data: PictureData) -> tuple[Flags, int]:
    """Which pictures a run was trained on, ``(n,)``, and how many networks it has compared on the others.

    The validation part selects among the audited rounds. What may have been trained on counts as trained on, since no
    bound is better than one that does not hold.
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


RUN_COLUMNS = {
    "run": ("run", "name", ""),
    "network": ("network", "recipe/network", ""),
    "bits": ("bits", "recipe/bits", ""),
    "size": ("size", "recipe/size", ""),
    "floor": ("floor (dB)", "floor", "g"),
    "noise": ("noise", "recipe/noise", ""),
    "images": ("images", "images", ""),
    "written": ("marked", "written/share", ".2%"),
    "psnr_mean": ("PSNR mean", "quality/grey/psnr_mean", ".2f"),
    "psnr_min": ("PSNR min", "quality/grey/psnr_min", ".2f"),
    "satisfied": ("meet the floor", "quality/grey/satisfied/share", ".2%"),
    "satisfied_at_least": ("at least", "quality/grey/satisfied/at_least", ".2%"),
    "bit_error": ("BER", "reading/grey/bit_error_mean", ".3%"),
    "error_free": ("error-free", "reading/grey/error_free/share", ".2%"),
    "usable_bits": ("usable bits", "reading/grey/usable_bits", ".1f"),
    "bit_error_rgb": ("BER (RGB file)", "reading/rgb/bit_error_mean", ".3%"),
    "bit_error_float": ("BER (floats)", "reading/float/bit_error_mean", ".3%"),
    "max_difference": ("max diff", "quality/grey/max_difference", ".0f"),
    "ssim": ("SSIM", "quality/grey/ssim_mean", ".4f"),
    "minutes": ("training (min)", "training/seconds", ".1f"),
}
"""The table of runs: a new column takes a line here. By its name in the CSV file: heading, where the report has the
number, and how it is shown."""


def table_rows(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The numbers of a report's runs, by column; None where a run has no such number."""

    def number(run: Mapping[str, Any], name: str) -> Any:
        found: Any = run
        for key in RUN_COLUMNS[name][1].split("/"):
            found = None if found is None else found.get(key)
        return found / 60 if found is not None and name == "minutes" else found

    return [{name: number(run, name) for name in RUN_COLUMNS} for run in runs]


def table_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """The table of a report's runs as Markdown, with what its columns mean."""
    rows = table_rows(runs)
    shown = [name for name in RUN_COLUMNS if any(row[name] is not None for row in rows)]
    cells = [[RUN_COLUMNS[name][0] for name in shown]]
    for row in rows:
        cells.append(["" if row[name] is None else format(row[name], RUN_COLUMNS[name][2]) for name in shown])
    notes = [
        "PSNR, SSIM, largest difference (grey levels) and BER are those of the 8-bit grey PNG files as written and "
        f"read back. At least: what holds for images like these with {runs[0]['confidence']:.0%} confidence "
        "(exact, each run for itself, images taken as independent). Usable bits: L(1 - H2(BER)).",
    ]

    for text, applies, more in REMARKS:
        if named := ", ".join(run["name"] + more.format(**run) for run in runs if applies(run)):
            notes.append(f"{text}: {named}.")
    return "\n\n".join([markdown_table(cells), *notes])


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
