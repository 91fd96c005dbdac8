"""A small set of X-rays whose findings can be seen: each of three has a bright corner of its own."""

from pathlib import Path

import numpy as np

from picture_folders import row, save, write_table
from studies.pictures import Store, find, prepare

CORNERS = {"Cardiomegaly": (0, 0), "Effusion": (0, 1), "Hernia": (1, 0)}


def make_store(folder: Path, *, patients: int = 40, size: int = 32, seed: int = 0) -> Store:
    """One image of each patient, of noise and bright corners, prepared."""
    rng = np.random.default_rng(1)
    rows = []
    for patient in range(1, patients + 1):
        name = f"{patient:08d}_000.png"
        pixels = rng.integers(60, 120, (size, size), np.uint8)
        found = [finding for finding in CORNERS if rng.random() < 0.4]
        for finding in found:
            down, right = (place * size // 2 for place in CORNERS[finding])
            pixels[down : down + size // 2, right : right + size // 2] += 100
        save(folder / "data" / "images" / name, pixels)
        rows.append(row(name, "|".join(found) or "No Finding"))
    write_table(folder / "data", rows)
    return prepare(find(folder / "data", labels=True), folder / "store", size=size, seed=seed, workers=1)
