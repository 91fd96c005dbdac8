"""The files of an evaluation: ``report.json``, a table of images for each run, and the table of runs."""

import csv
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from samplewise.checkpoint import save_state
from samplewise.data.pictures import PictureData, Store
from samplewise.data.pictures.store import SPLIT
from samplewise.disk import atomic, ensure_writable, write_json, write_text
from samplewise.errors import ConfigurationError
from samplewise.problem import evaluation_mode
from samplewise.provenance import provenance
from samplewise.watermark.judging.measure import Measured, Pixels, as_pixels, mark
from samplewise.watermark.judging.runs import Run
from samplewise.watermark.judging.summary import Summary

__all__ = ["FORMATS", "REPORT", "Judged", "again", "aligned", "open_output", "run_folder", "split_of", "table_rows"]
__all__ += ["table_text", "write_judged", "write_report"]

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
    "satisfied": "At least: exact Clopper-Pearson lower bound for images drawn like these and not trained on. Images "
    "of one patient are not independent; the bound over patients takes that into account.",
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


def run_folder(out: Path, name: str) -> Path:
    """Where the files of one run are: :data:`IMAGES`, :data:`MARKED` and :data:`WORST`."""
    return out / "runs" / name


def split_of(store: Store) -> dict[str, Any] | None:
    """Rule and seed of a store's split; None for the few pictures that cannot be split."""
    return store.split.origin if (store.folder / SPLIT).exists() else None


def again(one: Judged, places: Sequence[int]) -> tuple[Pixels, Pixels]:
    """Covers and marked images ``(K, H, W)`` as grey files hold them, marked once more as when they were judged.

    Args:
        one: a run and what was found of it.
        places: of the images among those that it was judged on.
    """
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
        "format": FORMATS[-1],
        "how": NOTES,
        "part": part,
        "runs": [_run(out, one) for one in judged],
        "figures": [path.relative_to(out).as_posix() for path in figures],
        "table": "table.csv",
        "provenance": provenance(seed=seed, device=device),
    }
    with atomic(out / "table.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(TABLE))
        writer.writeheader()
        writer.writerows(table_rows(judged))
    write_text(out / "table.md", table_text(judged) + "\n")
    write_json(out / REPORT, report)
    return report


def _run(out: Path, one: Judged) -> dict[str, Any]:
    run, store = one.run, one.data.store
    folder = run_folder(out, run.name)
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
        "per_image": (folder / IMAGES).relative_to(out).as_posix(),
        "marked_images": (folder / MARKED).relative_to(out).as_posix() if (folder / MARKED).exists() else None,
    }


class _TableColumn(NamedTuple):
    heading: str
    value: Callable[[Judged], Any]
    """None where a run has no such number."""
    form: str = ""


TABLE = {
    "run": _TableColumn("run", lambda one: one.run.name),
    "network": _TableColumn("network", lambda one: one.run.recipe.network),
    "bits": _TableColumn("bits", lambda one: one.run.recipe.bits),
    "size": _TableColumn("size", lambda one: one.run.recipe.size),
    "floor": _TableColumn("floor (dB)", lambda one: one.summary.floor, "g"),
    "noise": _TableColumn("noise", lambda one: one.run.recipe.noise),
    "images": _TableColumn("images", lambda one: one.summary.images),
    "psnr_mean": _TableColumn("PSNR mean", lambda one: one.summary.quality["grey"].psnr_mean, ".2f"),
    "psnr_min": _TableColumn("PSNR min", lambda one: one.summary.quality["grey"].psnr_min, ".2f"),
    "satisfied": _TableColumn("meet the floor", lambda one: _of(one.summary.quality["grey"].satisfied, "share"), ".2%"),
    "satisfied_at_least": _TableColumn(
        "at least", lambda one: _of(one.summary.quality["grey"].satisfied, "at_least"), ".2%"
    ),
    "bit_error": _TableColumn("BER", lambda one: one.summary.reading["grey"].bit_error_mean, ".3g"),
    "error_free": _TableColumn("error-free", lambda one: one.summary.reading["grey"].error_free.share, ".2%"),
    "usable_bits": _TableColumn("usable bits", lambda one: one.summary.reading["grey"].usable_bits, ".1f"),
    "bit_error_rgb": _TableColumn(
        "BER (RGB file)", lambda one: _of(one.summary.reading.get("rgb"), "bit_error_mean"), ".3g"
    ),
    "bit_error_float": _TableColumn("BER (floats)", lambda one: one.summary.reading["float"].bit_error_mean, ".3g"),
    "max_difference": _TableColumn("max diff", lambda one: one.summary.quality["grey"].max_difference, ".0f"),
    "ssim": _TableColumn("SSIM", lambda one: one.summary.quality["grey"].ssim_mean, ".4f"),
    "minutes": _TableColumn("training (min)", lambda one: one.run.minutes, ".1f"),
}
"""The table of runs: a new column takes a line here. Names are those of the CSV file."""


def _of(found: Any, name: str) -> Any:
    return None if found is None else getattr(found, name)


def table_rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """The numbers, by column; None where a run has no such number."""
    return [{name: column.value(one) for name, column in TABLE.items()} for one in judged]


def table_text(judged: Sequence[Judged]) -> str:
    """The table as Markdown, with what its columns mean."""
    rows = table_rows(judged)
    shown = {name: column for name, column in TABLE.items() if any(row[name] is not None for row in rows)}
    cells = [[column.heading for column in shown.values()]]
    for row in rows:
        texts = ["" if row[name] is None else format(row[name], column.form) for name, column in shown.items()]
        cells.append([text.replace("|", "\\|") for text in texts])
    baseline = ", ".join(one.run.name for one in judged if one.run.recipe.image_loss)
    notes = [
        "PSNR, SSIM, largest difference (grey levels) and BER are those of the 8-bit grey PNG files as written and "
        f"read back. At least: what holds for images like these with {judged[0].summary.confidence:.0%} confidence "
        "(exact, images taken as independent). Usable bits: L(1 - H2(BER)).",
    ]
    if baseline:
        notes.append(f"Trained without a floor, on a weighted image loss: {baseline}.")
    return "\n\n".join([aligned(cells), *notes])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
