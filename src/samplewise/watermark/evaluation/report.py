"""The files of an evaluation: ``report.json``, a table of images for each run, and the table of runs."""

import csv
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from samplewise.checkpoint import atomic, ensure_writable, write_json
from samplewise.data.pictures import Store
from samplewise.data.pictures.store import SPLIT
from samplewise.errors import ConfigurationError
from samplewise.provenance import provenance
from samplewise.watermark.evaluation.judged import Judged
from samplewise.watermark.evaluation.network import Evaluation
from samplewise.watermark.evaluation.table import write_table

__all__ = [
    "REPORT",
    "images_table",
    "make_report",
    "marked_images",
    "open_output",
    "split_of",
    "store_folder",
    "worst_images",
    "write_images",
]

FORMAT = "samplewise-watermark-evaluation-1"
REPORT = "report.json"
OURS = {REPORT, "table.csv", "table.md", "figures", "runs", "store"}
"""All that an evaluation's folder holds."""

NOTES = {
    "grey": "The image as an 8-bit grey PNG file, really written and read back: clamped, rounded, and the mean of the "
    "channels where the network gives three. PSNR has the peak 255; 120 dB stands for a file equal to its cover.",
    "rgb": "The same as an 8-bit RGB file, for networks with three channels. What differs between red, green and blue "
    "is lost in a grey file, so both are given.",
    "float": "The paper's way: all channels as the network gives them, neither clamped nor rounded. No file holds "
    "that.",
    "message": "Each image carries a message of its own, a function of its row in the store.",
    "satisfied": "At least: exact Clopper-Pearson lower bound for images drawn like these and not trained on. Images "
    "of one patient are not independent; the bound over patients takes that into account.",
    "usable_bits": "Capacity of a binary symmetric channel, L(1 - H2(BER)), at the mean bit error and as the mean over "
    "images.",
    "attacks": "Done to the files as written, each image with its own seed.",
}


def open_output(out: Path, ours: Collection[str] = OURS) -> Path:
    """Make ``out`` ready: a new or empty folder, or one of an earlier evaluation, whose files are replaced.

    Args:
        out: the folder.
        ours: names of all that the folder of such an evaluation holds.
    """
    if out.is_dir():
        foreign = sorted(path.name for path in out.iterdir() if path.name not in ours and not path.name.startswith("."))
        if foreign:
            raise ConfigurationError(f"{out}: holds {foreign[0]}, which is not of an evaluation; choose another folder")
    elif out.exists():
        raise ConfigurationError(f"{out}: is a file; choose a folder")
    return ensure_writable(out)


def store_folder(out: Path, *, size: int, seed: int) -> Path:
    """Where pictures are prepared: runs of different sizes, or trained with different splits, need their own."""
    return out / "store" / f"{size}-seed{seed}"


def split_of(store: Store) -> dict[str, Any] | None:
    """Rule and seed of a store's split; None for the few pictures that cannot be split."""
    if not (store.folder / SPLIT).exists():
        return None
    return store.split.origin


def images_table(out: Path, name: str) -> Path:
    """Where the table of images of a run is."""
    return out / "runs" / name / "images.csv"


def marked_images(out: Path, name: str) -> Path:
    """Where the marked images of a run are kept, if they are."""
    return out / "runs" / name / "marked"


def worst_images(out: Path, name: str) -> Path:
    """Where the images are kept on which a run does worst."""
    return out / "runs" / name / "worst.safetensors"


def write_images(path: Path, evaluation: Evaluation) -> None:
    """Write one row for each image: all measures, and bit errors after attacks where it was attacked."""
    columns = {**evaluation.measures, **{f"{key} bit_error": error for key, error in evaluation.attacks.items()}}
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "patient", "number", *columns])
        values = np.stack(list(columns.values()), axis=1)
        for place, name in enumerate(evaluation.names):
            numbers = [None if np.isnan(value) else float(value) for value in values[place]]
            writer.writerow([name, evaluation.patients[place], int(evaluation.numbers[place]), *numbers])


def make_report(
    out: Path, judged: Sequence[Judged], *, part: str, seed: int, device: str, figures: Sequence[Path]
) -> dict[str, Any]:
    """Write ``report.json`` and the table of runs; returns what the report holds.

    Args:
        out: the evaluation's folder.
        judged: the runs, at least one.
        part: of the pictures that they were judged on.
        seed: of the attacks.
        device: where the networks ran.
        figures: their files, in ``out``.
    """
    report = {
        "format": FORMAT,
        "how": NOTES,
        "part": part,
        "runs": [_run(out, one) for one in judged],
        "figures": [path.relative_to(out).as_posix() for path in figures],
        "table": "table.csv",
        "provenance": provenance(seed=seed, device=device),
    }
    write_table(out, judged)
    write_json(out / REPORT, report)
    return report


def _run(out: Path, one: Judged) -> dict[str, Any]:
    run, store = one.run, one.data.store
    kept = marked_images(out, run.name)
    return {
        "name": run.name,
        "label": run.label,
        "folder": run.folder.as_posix(),
        "recipe": asdict(run.recipe),
        "training": run.result,
        "data": {
            "folder": store.folder.as_posix(),
            "fingerprint": store.index.fingerprint,
            "trained_on_these": run.recipe.data == store.index.fingerprint,
            "pictures": len(store),
            "split": split_of(store),
            "split_as_trained": None if run.split is None else run.split == split_of(store),
        },
        **one.summary.to_dict(),
        "per_image": images_table(out, run.name).relative_to(out).as_posix(),
        "marked_images": kept.relative_to(out).as_posix() if kept.exists() else None,
    }
