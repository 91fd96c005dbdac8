"""The files of an evaluation: ``report.json``, a table of images for each run, and the table of runs."""

import csv
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floormark.api import Watermarker
from samplewise.errors import ConfigurationError
from samplewise.problem import evaluation_mode
from samplewise.storage.checkpoint import save_state
from samplewise.storage.disk import atomic, ensure_writable, write_json, write_text
from samplewise.storage.provenance import provenance
from studies.pictures import PictureData, Store
from studies.pictures.store import SPLIT
from studies.watermark.conversion import as_pixels
from studies.watermark.evaluation.measure import Flags, Measured, Pixels, mark
from studies.watermark.evaluation.shipped import ship
from studies.watermark.evaluation.summary import Summary, kept_floor
from studies.watermark.training import Run

FORMATS = tuple(f"samplewise-watermark-evaluation-{number}" for number in (1, 2, 3))
"""The last is written. Before the second, a baseline without a floor was given the one that its recipe names; before
the third, all networks were judged by themselves, and what was trained on went by the fingerprint of the pictures."""
REPORT = "report.json"
OURS = {REPORT, "table.csv", "table.md", "figures", "runs", "store"}
"""All that an evaluation's folder holds."""
IMAGES, MARKED, WORST = "images.csv", "marked", "worst.safetensors"
"""In the folder of a run: the table of its images, the marked images if they are kept, and those it does worst on."""
KEPT = 6  # images of each kind

NOTES = {
    "judged": "tool: the file that embed writes and what extract reads from it, with the strength that the floors of "
    "image and patches allow, the code that corrects errors, and the search. network: the residual as the network "
    "gives it, as the paper judges one; embed scales it to the floor and codes the message, which is not this.",
    "grey": "The image as an 8-bit grey PNG file, really written and read back: clamped, rounded, and the mean of the "
    "channels where the network gives three. PSNR has the peak 255; 120 dB stands for a file equal to its cover.",
    "rgb": "The same as an 8-bit RGB file, for networks with three channels. What differs between red, green and blue "
    "is lost in a grey file, so both are given.",
    "float": "The paper's way: all channels as the network gives them, neither clamped nor rounded. No file holds "
    "that.",
    "message": "Each image carries a message of its own, a function of its row in the store. Bit errors are those "
    "before correction; where the tool reads no message, one half stands for them.",
    "trained_on": "Images whose pixels, or whose patient, were in the training part of the run, and all where the "
    "run does not say what it was trained on.",
    "satisfied": "At least: exact Clopper-Pearson lower bound for images drawn like these, from those of them that "
    "were not trained on, none if all were; corrected (Bonferroni) for the networks compared on them. Images of one "
    "patient are not independent; the bound over patients takes that into account. Of the tool: among the images it "
    "marks.",
    "error_free": "The whole message is right, in the tool after correction. At least: the same, and all of a run "
    "hold at once, as written and after each attack.",
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
    if one.summary["judged"] == "tool":
        marker, rows = Watermarker(one.run.network), one.data.rows[list(places)].tolist()
        originals = one.data.store.images[rows]
        floor = one.summary["floor"]
        return originals, np.stack([ship(marker, *each, floor) for each in zip(originals, rows, strict=True)])
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
        "psnr": np.argsort(kept_floor(one.measured, "grey"), kind="stable")[:KEPT].tolist(),
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
        "data": judged_on(run, one),
        **one.summary,
        "per_image": (folder / IMAGES).relative_to(out).as_posix(),
        "marked_images": (folder / MARKED).relative_to(out).as_posix() if (folder / MARKED).exists() else None,
    }


def judged_on(run: Run, one: Judged) -> dict[str, Any]:
    """The pictures that a run is judged on, and how many of them it was trained on."""
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


TABLE = {
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
    notes = [
        "PSNR, SSIM, largest difference (grey levels) and BER are those of the 8-bit grey PNG files as written and "
        f"read back. At least: what holds for images like these with {runs[0]['confidence']:.0%} confidence "
        "(exact, each run for itself, images taken as independent). Usable bits: L(1 - H2(BER)).",
    ]

    def named(text: str, runs: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        if found := ", ".join(run["name"] + more for run, more in runs):
            notes.append(f"{text}: {found}.")

    named(
        "As the tool ships it (embed and extract: strength up to the floors, error correction, search), of the images "
        "that it marks",
        ((run, "") for run in runs if run["judged"] == "tool"),
    )
    named(
        "By the network's own residual, as the paper judges it, which is not what embed makes of it",
        ((run, "") for run in runs if run["judged"] == "network"),
    )
    named(
        "At least, corrected for the rounds that were compared on these images",
        ((run, f" ({run['compared']})") for run in runs if run["compared"] > 1),
    )
    named(
        "Trained on some of these images or on others of their patients, from which nothing follows for unseen ones",
        (
            (run, f" ({run['trained_on']:,} of {run['images']:,})")
            for run in runs
            if run["trained_on"] and run["data"]["training_known"]
        ),
    )
    named(
        "It is not known what it was trained on, so that nothing follows for unseen images",
        ((run, "") for run in runs if not run["data"]["training_known"]),
    )
    named(
        "Trained without a floor, on a weighted image loss", ((run, "") for run in runs if run["recipe"]["image_loss"])
    )
    return "\n\n".join([aligned(cells), *notes])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
