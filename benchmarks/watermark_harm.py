"""What a mark looks like: details of marked images beside their originals at 300 %, and ten times the difference.

    python benchmarks/watermark_harm.py --data ChestX-ray8/px1024/images

Lung, bone and background of X-rays at three floors, and a CT that comes with pydicom, in the normal window. Pictures
go to ``docs/images``, the numbers to ``results/watermark/harm``.
"""

from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, begin, keep, options, table
from numpy.typing import NDArray
from PIL import Image

from floormark import RefusedError, Watermarker
from floormark.display_range import shown_grey, shown_range
from floormark.imageio import StoredImage, read

IMAGES = ROOT / "docs" / "images"
SIDE, ZOOM, DIFFERENCE = 100, 3, 10
"""Pixels of a detail, how many times as large it is drawn, and how many times the difference."""
FLOORS = (40.0, 45.0, 50.0)
DETAILS = {
    "lung": ("00001308_002.png", (430, 280)),
    "bone": ("00001526_002.png", (512, 225)),
    "background": ("00001526_002.png", (20, 20)),
    "calm": ("00003490_008.png", (500, 300)),
}
"""The X-ray of each detail, and the row and the column where it begins."""
CT = "CT_small.dcm"
CT_FLOORS = (30.0, 38.0, 45.0)


def panels(image: StoredImage, at: tuple[int, int], marked: dict[str, Any], place: Path) -> None:
    """One detail of an image and of what it became at each floor, above ten times the difference."""
    rows, columns = (slice(start, start + SIDE) for start in at)
    shown = shown_range(image)

    def drawn(grey: NDArray[Any]) -> NDArray[np.uint8]:
        levels = np.rint(np.clip(grey, 0.0, 1.0) * 255.0).astype(np.uint8)
        return np.kron(levels, np.ones((ZOOM, ZOOM), np.uint8))

    every = [image.pixels, *marked.values()]
    above = [drawn(shown_grey(pixels[rows, columns], shown)) for pixels in every]
    change = [(pixels[rows, columns].astype(np.float64) - image.pixels[rows, columns]) / shown[1] for pixels in every]
    below = [drawn(0.5 + DIFFERENCE * each) for each in change]
    Image.fromarray(np.vstack([np.hstack(above), np.hstack(below)])).save(place, optimize=True)


def liveliest(image: StoredImage) -> tuple[int, int]:
    """Where a detail begins that shows most between black and white."""
    grey = shown_grey(image.pixels, shown_range(image))
    rows, columns = (range(0, length - SIDE + 1, 16) for length in grey.shape)
    starts = [(row, column) for row in rows for column in columns]

    def shows(at: tuple[int, int]) -> float:
        detail = grey[at[0] : at[0] + SIDE, at[1] : at[1] + SIDE]
        return float(((detail > 0) & (detail < 1)).mean() * detail.std())

    return max(starts, key=shows)


def marks(marker: Watermarker, image: StoredImage, floors: tuple[float, ...]) -> tuple[dict[str, Any], Any]:
    """The image at each floor, or without those that are refused, and what was measured."""
    found: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for floor in floors:
        try:
            marked = marker.embed(image, "patient 4711", psnr=floor)
        except RefusedError as error:
            rows.append({"floor": floor, "refused": str(error)})
            continue
        measured = marked.certificate.fidelity
        found[f"{floor:g} dB"] = marked.image
        rows.append(
            {
                "floor": floor,
                "shown_psnr": measured.shown_psnr,
                "patch_psnr": measured.min_adjusted_patch_psnr,
                "ssim": measured.ssim,
                "largest_change": measured.largest_change,
                "unit": measured.unit,
            }
        )
    return found, rows


def main() -> None:
    parser = options(__doc__)
    parser.set_defaults(out=ROOT / "results" / "watermark" / "harm")
    parser.add_argument("--data", type=Path, required=True, help="folder of grey PNG images")
    parser.add_argument("--pictures", type=Path, default=IMAGES, help="folder of the crops (docs/images)")
    chosen = begin(parser)
    for folder in (chosen.out, chosen.pictures):
        folder.mkdir(parents=True, exist_ok=True)
    marker = Watermarker.load()
    xrays: dict[str, Any] = {}
    for name in dict.fromkeys(name for name, _ in DETAILS.values()):
        with Image.open(chosen.data / name) as opened:
            xray = StoredImage(np.array(opened.convert("L")), 8)
        xrays[name] = xray, *marks(marker, xray, FLOORS)
    for detail, (name, at) in DETAILS.items():
        xray, found, _ = xrays[name]
        panels(xray, at, found, chosen.pictures / f"harm-{detail}.png")
    import pydicom

    ct = read(next(Path(pydicom.__file__).parent.rglob(CT)))
    slices, ct_rows = marks(marker, ct, CT_FLOORS)
    panels(ct, liveliest(ct), slices, chosen.pictures / "harm-ct.png")
    tables = {f"X-ray {name.removesuffix('.png')}": rows for name, (_, _, rows) in xrays.items()} | {"CT": ct_rows}
    lines = [(what, f"{row['floor']:g}", *_line(row)) for what, some in tables.items() for row in some]
    page = [
        "# What a mark looks like",
        "",
        *table(["Image", "Floor, dB", "PSNR in the window", "Floor all patches keep", "SSIM", "Largest change"], lines),
    ]
    keep(__file__, chosen, {"images": tables}, page)


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    if "refused" in row:
        return ("refused", "", "", row["refused"].rpartition(";")[2].strip())
    unit = f" {row['unit']}" if row["unit"] else " levels"
    return (
        f"{row['shown_psnr']:.2f}",
        f"{row['patch_psnr']:.2f}",
        f"{row['ssim']:.4f}",
        f"{row['largest_change']:g}{unit}",
    )


if __name__ == "__main__":
    main()
