"""The study on random pictures of 4 x 4 pixels: seconds for whole runs."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from samplewise.training import History
from studies.data import ImageData
from studies.mnist.results import Result, read_results
from studies.mnist.rows import parse_row
from studies.mnist.settings import SETTINGS, StudySettings
from studies.mnist.study import run_row
from studies.mnist.table_one import COLUMNS


def small_data(name: str = "small") -> ImageData:
    """Sixty pictures of three classes for training and thirty for test."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    images = torch.randint(0, 128, (90, 4, 4), generator=generator)
    images[torch.arange(90), labels] += 127  # the class is a bright line
    return ImageData.from_bytes(name, (images[:60], labels[:60]), (images[60:], labels[60:]))


def small_settings(data: ImageData, *, epochs: int = 3) -> StudySettings:
    """A study of a few epochs whose bound part of the samples meet."""
    return StudySettings.of(data, theta=0.05, hidden=16, code=6, epochs=epochs, warm_epochs=1, batch_size=20)


def small_run(out: Path, *rows: str, seeds: tuple[int, ...] = (0,), name: str = "small") -> list[Result]:
    """Run rows into ``out`` and read them back."""
    data = small_data(name)
    settings = small_settings(data)
    out.mkdir(parents=True, exist_ok=True)
    SETTINGS.write(out, settings)
    for row in rows:
        for seed in seeds:
            run_row(settings, data, parse_row(row), seed, out)
    return read_results(out) if rows else []


def killed_run(out: Path, row: str) -> None:
    """Run a row in a process that ends at once after the second epoch."""
    plain = History.append

    def append(self: History, row: dict[str, Any]) -> None:
        plain(self, row)
        if self.folder and "warm" not in self.folder.parts and row["epoch"] == 2:
            os._exit(9)

    History.append = append  # type: ignore[method-assign]
    small_run(out, row)


def with_numbers(result: Result, numbers: Mapping[str, Mapping[str, float]]) -> Result:
    """The result with other numbers, by data set and column, in every epoch."""
    keys = {column.name: column.key for column in COLUMNS}
    given = {f"{split}/{keys[name]}": value for split, half in numbers.items() for name, value in half.items()}
    changed = replace(result)
    changed.__dict__["epochs"] = [{**epoch, **given} for epoch in result.epochs]
    return changed
