"""The study of the convolutional codec: a floor for every tile, beside image formats at that floor."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import imagecodecs
import torch

from samplewise.errors import ConfigurationError
from samplewise.storage import from_plain, provenance, read_json, write_json, write_text
from studies.compression.arms import MARGIN, RATE, TAU0, AnyCodec, Arm, optimise
from studies.compression.blocks import Parts, load
from studies.compression.classic import FORMATS, ClassicRow, evaluate_format
from studies.compression.codec import LEVELS, PIXELS
from studies.compression.convolutional import TILE, ConvolutionalCodec
from studies.compression.study import TABLE, Plan, Row, run_study, tables
from studies.records import markdown_table

CLASSIC = "classic.json"
BATCH, TRAIN, FIRST = 16, 16_384, 2500
"""Tiles of a batch, to train on, and whose principal components a codec begins with."""
HELD_OUT = 600, 1200
"""Tiles at most to choose on, and unseen ones."""


@dataclass(frozen=True)
class TilePlan(Plan):
    """The arms, data and settings of the study, with tiles as samples."""

    recipe: str = (
        f"convolutional, tiles of {TILE}, batch {BATCH}, rate {RATE:g}, {TRAIN:,} tiles at most, {LEVELS} gains, "
        f"tau from {TAU0:g}, margin {MARGIN:g}"
    )

    def load(self, seed: int) -> Parts:
        """The parts for a seed."""
        return load(self.data, seed, train=TRAIN, side=TILE, held_out=HELD_OUT)

    def train(self, arm: Arm, parts: Parts, seed: int) -> AnyCodec:
        """A run."""
        if arm.weight is not None:
            raise ConfigurationError(f"{arm}: expected another arm, the convolutional codec is not told its weight")
        torch.manual_seed(seed)
        data = parts.train.pixels
        codec = ConvolutionalCodec(data[:FIRST, 0], self.floor)
        optimise(codec, arm, data, parts, size=min(BATCH, len(data)), seed=seed, steps=self.steps)
        return codec.ready()

    def tables(self, rows: Sequence[Row]) -> str:
        """What is written beside the rows."""
        return tables([replace(row, bits=row.bits / PIXELS) for row in rows], "pixel")


def run_tiles(
    plan: TilePlan, arms: Sequence[Arm], seeds: Sequence[int], out: Path, note: Callable[[str], None]
) -> tuple[str, list[dict[str, Any]]]:
    """Run the study, and image formats on the same unseen tiles; results that are in ``out`` are not made again.

    Returns:
        The tables, and for each arm and seed what holds for unseen tiles in one pass.
    """
    rows, summary = run_study(plan, arms, seeds, out, note)
    formats = _table(_formats(plan, out, note))
    text = f"{plan.tables(rows)}\n## Image formats at the same floor, same samples\n\n{formats}\n"
    write_text(out / TABLE, text)
    return text, summary


def _formats(plan: TilePlan, out: Path, note: Callable[[str], None]) -> list[ClassicRow]:
    path = out / CLASSIC
    if path.exists():
        return [from_plain(ClassicRow, each) for each in read_json(path, "image formats at a floor")["rows"]]
    samples, rows = plan.load(0).test, []
    for name in FORMATS:
        note(f"{name} on {len(samples):,} tiles")
        rows.append(evaluate_format(name, samples, plan.floor))
    plain = {"data": plan.data, "floor": plan.floor, "rows": [asdict(row) for row in rows]}
    write_json(path, {**plain, "imagecodecs": imagecodecs.__version__, "provenance": provenance()})
    return rows


def _table(rows: Sequence[ClassicRow]) -> str:
    table = [["Format", "Bits a pixel without header", "With it", "Header, bytes", "Worst, dB", "Stored raw"]]
    for row in rows:
        without, whole = (f"{bits / PIXELS:.4f}" for bits in (row.bits, row.bits_with_header))
        table.append([row.format, without, whole, f"{row.header_bytes}", f"{row.worst_psnr:.1f}", f"{row.raw_samples}"])
    return markdown_table(table)
