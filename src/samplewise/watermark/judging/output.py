"""The files of an evaluation: ``report.json``, a table of images for each run, and the table of runs."""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samplewise.checkpoint import save_state
from samplewise.data.pictures import PictureData, Store
from samplewise.data.pictures.store import SPLIT
from samplewise.disk import atomic, ensure_writable, write_json, write_text
from samplewise.errors import ConfigurationError
from samplewise.problem import evaluation_mode
from samplewise.provenance import provenance
from samplewise.watermark.judging.measure import Measured, Pixels, mark
from samplewise.watermark.judging.summary import Summary
from samplewise.watermark.tools import as_pixels
from samplewise.watermark.training import Run

FORMATS = ("samplewise-watermark-evaluation-1", "samplewise-watermark-evaluation-2")
"""The last is written. Before it, a baseline without a floor was given the one that its recipe names."""
REPORT = "report.json"
OURS = {REPORT, "table.csv", "table.md", "figures", "runs", "store"}
"""All that an evaluation's folder holds."""
IMAGES, MARKED, WORST = "images.csv", "marked", "worst.safetensors"
"""In the folder of a run: the table of its images, the marked images if they are kept, and those it does worst on."""
KEPT = 6  # images of each kind

NOTES = {
    "grey": "The image as an 8-bit grey PNG file, really written and read back: clamped, rounded, and the mean of the "
    "channels where the network gives three. PSNR has the peak 255; 120 dB stands for a file equal to its cover.",
    "rgb": "The same as an 8-bit RGB file, for networks with three channels. What differs between red, green and blue "
    "is lost in a grey file, so both are given.",
    "float": "The paper's way: all channels as the network gives them, neither clamped nor rounded. No file holds "
    "that.",
    "message": "Each image carries a message of its own, a function of its row in the store.",
    "satisfied": "At least: exact Clopper-Pearson lower bound for images drawn like these and not trained on, none if "
    "these were; corrected (Bonferroni) for the networks compared on them. Images of one patient are not independent; "
    "the bound over patients takes that into account.",
    "error_free": "At least: the same, and all of a run hold at once, as written and after each attack.",
    "usable_bits": "Capacity of a binary symmetric channel, L(1 - H2(BER)), at the mean bit error and as the mean over "
    "images.",
    "attacks": "Done to the files as written, each image with its own seed.",
}


@dataclass(frozen=True)
class Judged:
    """A run, the pictures it was judged on, and what was found of it."""

    run: Run
    data: PictureData
    measured: Measured
    summary: Summary


def open_output(out: Path, ours: Collection[str] = OURS) -> Path:
    """Make ``out`` ready: a new or empty folder, or one of an earlier evaluation, which holds nothing but ``ours``."""
    if out.is_dir():
        foreign = sorted(path.name for path in out.iterdir() if path.name not in ours and not path.name.startswith("."))
        if foreign:
            raise ConfigurationError(f"{out}: holds {foreign[0]}, which is not of an evaluation; choose another folder")
    elif out.exists():
        raise ConfigurationError(f"{out}: is a file; choose a folder")
    return ensure_writable(out)


def run_folder(out: Path, name: str) -> Path:
    """Where the files of one run are: :data:`IMAGES`, :data:`MARKED` and :data:`WORST`."""
    return out / "runs" / name


def split_of(store: Store) -> dict[str, Any] | None:
    """Rule and seed of a store's split; None for the few pictures that cannot be split."""
    return store.split.origin if (store.folder / SPLIT).exists() else None


def again(one: Judged, places: Sequence[int]) -> tuple[Pixels, Pixels]:
    """Covers and marked images ``(K, H, W)`` as grey files hold them, marked once more as when they were judged."""
    images, numbers = one.data.take(torch.as_tensor(places))
    device = next(one.run.network.parameters()).device
    with evaluation_mode(one.run.network):
        covers, _, marked = mark(one.run.network, images.to(device), numbers.to(device))
    return as_pixels(covers, "grey"), as_pixels(marked, "grey")


def write_judged(out: Path, one: Judged) -> None:
    """Write the table of a run's images, and those with the lowest PSNR and with the most bit errors, if any."""
    folder, columns = run_folder(out, one.run.name), one.measured.columns
    one.measured.write(folder / IMAGES)
    error = columns["grey/bit_error"]
    worst = {
        "psnr": np.argsort(columns["grey/psnr"], kind="stable")[:KEPT].tolist(),
        "bit_error": [place for place in np.argsort(-error, kind="stable")[:KEPT].tolist() if error[place] > 0],
    }
    kept = {}
    for kind, places in worst.items():
        if places:
            number, (covers, marked) = one.measured.numbers[places], again(one, places)
            named = {"number": number, "original": covers, "marked": marked}
            kept[kind] = {name: torch.from_numpy(values) for name, values in named.items()}
    save_state(folder / WORST, kept)


def write_report(
    out: Path, judged: Sequence[Judged], *, part: str, seed: int, device: str, figures: Sequence[Path]
) -> dict[str, Any]:
    """Write ``report.json`` and the table of runs, at least one, into ``out``; returns what the report holds."""
    runs = [report_entry(out, one) for one in judged]
    report = {
        "format": FORMATS[-1],
        "how": NOTES,
        "part": part,
        "runs": runs,
        "figures": [path.relative_to(out).as_posix() for path in figures],
        "table": "table.csv",
        "provenance": provenance(seed=seed, device=device),
    }
    with atomic(out / "table.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(TABLE))
        writer.writeheader()
        writer.writerows(table_rows(runs))
    write_text(out / "table.md", table_text(runs) + "\n")
    write_json(out / REPORT, report)
    return report


def report_entry(out: Path, one: Judged) -> dict[str, Any]:
    """All that a report in ``out`` says of a run: where it comes from, its summary, and where its files are."""
    run, folder = one.run, run_folder(out, one.run.name)
    return {
        "name": run.name,
        "label": run.label,
        "folder": run.folder.as_posix(),
        "recipe": asdict(run.recipe),
        "training": run.result,
        "data": judged_on(run, one.data.store),
        **one.summary,
        "per_image": (folder / IMAGES).relative_to(out).as_posix(),
        "marked_images": (folder / MARKED).relative_to(out).as_posix() if (folder / MARKED).exists() else None,
    }


def judged_on(run: Run, store: Store) -> dict[str, Any]:
    """The pictures that a run is judged on, and whether it was trained on a part of them, by the same split."""
    return {
        "folder": store.folder.as_posix(),
        "fingerprint": store.fingerprint,
        "trained_on_these": run.recipe.data == store.fingerprint,
        "pictures": len(store),
        "split": split_of(store),
        "split_as_trained": None if run.split is None else run.split == split_of(store),
    }


def compared_on(part: str, data: Mapping[str, Any], recipe: Mapping[str, Any]) -> float:
    """How many networks a run has compared on a part of the pictures, as :func:`judged_on` describes them.

    The validation part selects among the audited rounds. Training compares without end; what may have been trained on
    counts as trained on, since no bound is better than one that does not hold.
    """
    if not data["trained_on_these"]:
        return 1
    if part in ("train", "all") or data["split_as_trained"] is not True:
        return math.inf
    return (
        math.ceil((recipe["message_rounds"] + recipe["rounds"]) / recipe["audit_every"]) if part == "validation" else 1
    )


TABLE = {
    "run": ("run", "name", ""),
    "network": ("network", "recipe/network", ""),
    "bits": ("bits", "recipe/bits", ""),
    "size": ("size", "recipe/size", ""),
    "floor": ("floor (dB)", "floor", "g"),
    "noise": ("noise", "recipe/noise", ""),
    "images": ("images", "images", ""),
    "psnr_mean": ("PSNR mean", "quality/grey/psnr_mean", ".2f"),
    "psnr_min": ("PSNR min", "quality/grey/psnr_min", ".2f"),
    "satisfied": ("meet the floor", "quality/grey/satisfied/share", ".2%"),
    "satisfied_at_least": ("at least", "quality/grey/satisfied/at_least", ".2%"),
    "bit_error": ("BER", "reading/grey/bit_error_mean", ".3g"),
    "error_free": ("error-free", "reading/grey/error_free/share", ".2%"),
    "usable_bits": ("usable bits", "reading/grey/usable_bits", ".1f"),
    "bit_error_rgb": ("BER (RGB file)", "reading/rgb/bit_error_mean", ".3g"),
    "bit_error_float": ("BER (floats)", "reading/float/bit_error_mean", ".3g"),
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
        for key in TABLE[name][1].split("/"):
            found = None if found is None else found.get(key)
        return found / 60 if found is not None and name == "minutes" else found

    return [{name: number(run, name) for name in TABLE} for run in runs]


def table_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """The table of a report's runs as Markdown, with what its columns mean."""
    rows = table_rows(runs)
    shown = [name for name in TABLE if any(row[name] is not None for row in rows)]
    cells = [[TABLE[name][0] for name in shown]]
    for row in rows:
        texts = ["" if row[name] is None else format(row[name], TABLE[name][2]) for name in shown]
        cells.append([text.replace("|", "\\|") for text in texts])
    baseline = ", ".join(run["name"] for run in runs if run["recipe"]["image_loss"])
    notes = [
        "PSNR, SSIM, largest difference (grey levels) and BER are those of the 8-bit grey PNG files as written and "
        f"read back. At least: what holds for images like these with {runs[0]['confidence']:.0%} confidence "
        "(exact, each run for itself, images taken as independent). Usable bits: L(1 - H2(BER)).",
    ]
    corrected = ", ".join(f"{run['name']} ({run['compared']})" for run in runs if 1 < run["compared"] < math.inf)
    if corrected:
        notes.append(f"At least, corrected for the rounds that were compared on these images: {corrected}.")
    if trained := ", ".join(run["name"] for run in runs if run["compared"] == math.inf):
        notes.append(f"Trained on these images, so that nothing follows for others: {trained}.")
    if baseline:
        notes.append(f"Trained without a floor, on a weighted image loss: {baseline}.")
    return "\n\n".join([aligned(cells), *notes])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
