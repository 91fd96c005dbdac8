"""What others report of their watermarks: figures from a paper, to stand beside ours."""

from common import table

SOURCE = (
    "Petrov, Fernandez, Soucek, Elsahar, *We Can Hide More Bits: The Unused Watermarking Capacity in Theory and in "
    "Practice*, arXiv 2510.12812, table 4, read from its text as submitted for review"
)
TOOLS = ("ChunkySeal", "VideoSeal", "MBRS", "TrustMark", "WAM")
BITS = (1024, 256, 256, 100, 32)
PSNR = (45.32, 44.42, 45.54, 42.29, 38.19)
ACCURACY = {
    "none": (99.74, 99.90, 98.74, 99.81, 100.00),
    "JPEG 90": (99.60, 99.85, 98.66, 99.69, 100.00),
    "JPEG 80": (99.31, 99.84, 98.60, 99.69, 100.00),
    "JPEG 50": (98.35, 99.64, 98.84, 99.62, 100.00),
    "JPEG 40": (97.18, 99.41, 98.35, 99.50, 100.00),
    "Gaussian blur 17": (99.70, 99.79, 96.83, 99.73, 100.00),
    "brightness 150 %": (97.26, 96.18, 91.03, 92.42, 100.00),
    "contrast 150 %": (99.11, 98.96, 93.69, 95.23, 100.00),
    "horizontal flip": (99.65, 99.89, 50.63, 99.81, 100.00),
    "resize 32 %": (99.75, 99.89, 98.24, 99.81, 100.00),
    "resize 71 %": (99.73, 99.90, 98.69, 99.81, 100.00),
    "crop 45 %": (65.22, 50.70, 50.59, 51.73, 94.14),
    "crop 55 %": (86.90, 52.73, 50.20, 51.58, 96.22),
    "crop 71 %": (95.85, 87.34, 50.26, 56.42, 98.83),
    "crop 95 %": (99.29, 99.56, 50.93, 99.92, 99.22),
    "rotation by 5": (99.29, 99.37, 50.21, 56.88, 98.83),
    "rotation by 10": (97.26, 98.31, 50.42, 48.23, 75.00),
    "rotation by 30": (49.56, 51.30, 51.50, 49.65, 51.82),
    "rotation by 45": (50.01, 50.18, 51.50, 50.96, 50.91),
    "rotation by 90": (51.37, 81.07, 50.50, 49.42, 50.78),
}
"""Percent of the bits that are right, on photographs (SA-1B) at their own resolution."""


def page() -> list[str]:
    """Lines of a section."""
    exact = {"mean PSNR, dB": PSNR, **ACCURACY}
    rows = [["bits", *map(str, BITS)], *([name, *(f"{one:.2f}" for one in values)] for name, values in exact.items())]
    return [
        "## What others report",
        "",
        f"Percent of right bits, as published ({SOURCE}); nothing here was run by us. What differs from the tables "
        "above: other images, colour photographs of SA-1B; a mean PSNR over images instead of a floor for each; "
        "the share of raw bits that are right, of which 50 is chance, instead of whole messages that are exact. "
        "Without a code that corrects errors, 99 % of 256 bits are hardly ever a whole message (0.99 to the power 256 "
        "is 0.08). Crops and sizes look like shares of a side, as they are the square roots of 10 to 90 %: then 71 % "
        "is half the area.",
        "",
        *table(["Attack", *TOOLS], rows),
    ]
