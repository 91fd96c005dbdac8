"""Small folders of pictures for tests, ChestX-ray8's layout among them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from natural_images import natural_image

HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
)


def noise(seed: int, height: int = 8, width: int = 8) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)


def save(path: Path, pixels: NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def write_pictures(folder: Path, names: Iterable[str], height: int = 8, width: int = 8) -> Path:
    """Pictures of noise, each another one."""
    for seed, name in enumerate(names):
        save(folder / name, noise(seed, height, width))
    return folder


def write_natural(folder: Path, count: int = 20, side: int = 32) -> Path:
    """Pictures with edges and smooth places, each another one."""
    for seed in range(count):
        save(folder / f"{seed:02}.png", natural_image(height=side, width=side, seed=seed))
    return folder


def row(name: str, findings: str = "No Finding", patient: str | None = None) -> str:
    patient = str(int(name[:8])) if patient is None else patient
    return f"{name},{findings},0,{patient},57,M,PA,2682,2749,0.143,0.143"


def write_table(
    folder: Path, rows: Iterable[str], name: str = "Data_Entry_2017_v2020.csv", header: str = HEADER
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


FINDINGS = ("No Finding", "Cardiomegaly", "Cardiomegaly|Effusion", "Hernia", "No Finding")


def chest_names(patients: int = 12, each: int = 2) -> dict[str, str]:
    """Official names with findings, ``each`` of every patient."""
    names = [f"{patient:08d}_{number:03d}.png" for patient in range(1, patients + 1) for number in range(each)]
    return {name: FINDINGS[place % len(FINDINGS)] for place, name in enumerate(names)}


def write_chest(folder: Path, names: Mapping[str, str] | None = None, images: str = "images") -> Path:
    """The official layout: pictures in a folder ``images`` and the CSV beside it."""
    names = chest_names() if names is None else names
    write_pictures(folder / images, names)
    write_table(folder, [row(name, findings) for name, findings in names.items()])
    return folder
