"""What a mark looks like: details of marked images beside their originals, four times as large, in two windows.

    python benchmarks/watermark_harm.py --data ChestX-ray8/px1024/images --image 00001526_002.png

Lung, bone and background of an X-ray at three floors, and a CT that comes with pydicom, in its display window.
Below a normal window there is a narrow one around the middle grey of the detail: what somebody does who looks closely.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from common import ROOT, begin, keep, options, table
from PIL import Image

from floormark import RefusedError, Watermarker
from floormark.display_range import shown_grey, shown_range
from floormark.imageio import StoredImage, read

mpl.use("agg")
from matplotlib import pyplot as plt

SIDE, NARROW = 96, 0.16
"""Pixels of a detail, and the width of the narrow window as a share of the whole."""
FLOORS = (40.0, 45.0, 50.0)
DETAILS = {"lung": (0.42, 0.28), "bone": (0.22, 0.5), "background": (0.02, 0.02)}
"""Where the details begin, as shares of the height and the width."""
CT = "CT_small.dcm"
CT_FLOORS = (30.0, 45.0)


def panels(image: StoredImage, at: tuple[int, int], marked: dict[str, Any], place: Path, title: str) -> None:
    """One detail of an image and of what it became, in a normal and in a narrow window."""
    low, span = shown_range(image)
    rows, columns = (slice(start, start + SIDE) for start in at)
    middle = float(np.median(image.pixels[rows, columns]))
    windows = {"": (low, low + span), "narrow window": (middle - NARROW * span / 2, middle + NARROW * span / 2)}
    every = {"original": image.pixels, **marked}
    figure, axes = plt.subplots(2, len(every), figsize=(2.6 * len(every), 6.2), squeeze=False)
    for line, (name, (black, white)) in zip(axes, windows.items(), strict=True):
        for axis, (what, pixels) in zip(line, every.items(), strict=True):
            axis.imshow(pixels[rows, columns], cmap="gray", vmin=black, vmax=white, interpolation="nearest")
            axis.set_title(f"{what}\n{name}" if name else what, fontsize=9)
            axis.axis("off")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout(h_pad=2.0)
    figure.savefig(place, dpi=110)
    plt.close(figure)


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
    parser.add_argument("--image", default="00001526_002.png", help="name of the X-ray (00001526_002.png)")
    chosen = begin(parser)
    chosen.out.mkdir(parents=True, exist_ok=True)
    marker = Watermarker.load()
    with Image.open(chosen.data / chosen.image) as opened:
        xray = StoredImage(np.array(opened.convert("L")), 8)
    found, rows = marks(marker, xray, FLOORS)
    height, width = xray.pixels.shape
    for name, (row, column) in DETAILS.items():
        at = int(row * height), int(column * width)
        panels(xray, at, found, chosen.out / f"{name}.png", f"{name}, {SIDE} x {SIDE} pixels")
    import pydicom

    ct = read(next(Path(pydicom.__file__).parent.rglob(CT)))
    slices, ct_rows = marks(marker, ct, CT_FLOORS)
    panels(ct, liveliest(ct), slices, chosen.out / "ct.png", "CT in its display window")
    lines = [
        (what, f"{row['floor']:g}", *_line(row)) for what, some in (("X-ray", rows), ("CT", ct_rows)) for row in some
    ]
    page = [
        "# What a mark looks like",
        "",
        *table(["Image", "Floor, dB", "PSNR in the window", "Floor all patches keep", "SSIM", "Largest change"], lines),
    ]
    keep(__file__, chosen, {"xray": rows, "ct": ct_rows, "image": chosen.image}, page)


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
