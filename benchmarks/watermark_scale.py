"""Large images: the residual made at a fraction of the size and scaled, against one made at full size.

    python benchmarks/watermark_scale.py --data ChestX-ray8/px256/images --split chest.store/split.json

X-rays that were not used in training are scaled up to 1024 x 1024, with noise, marked both ways at the same floor, and
read after what may happen to a file. ``samplewise.watermark.view.SIDE`` is the choice that came out of it.
"""

import time
from typing import Any

from common import Pixels, begin, enlarged, keep, resized, saved, table, unseen_xrays, xray_options

import samplewise as sw
from samplewise.errors import RefusedError
from samplewise.watermark import view

TEXT = "patient 4711"
SIZE = 1024
TREATMENTS = {
    "PNG": saved("PNG"),
    "JPEG 75": saved("JPEG", quality=75),
    "JPEG 50": saved("JPEG", quality=50),
    "50%": resized(0.5),
    "25%": resized(0.25),
}


def measure(marker: sw.watermark.Watermarker, images: list[Pixels], floor: float) -> dict[str, Any]:
    exact = dict.fromkeys(TREATMENTS, 0)
    refused, seconds = 0, 0.0
    for image in images:
        began = time.process_time()
        try:
            marked = marker.embed(image, TEXT, psnr=floor).image
        except RefusedError:
            refused += 1
            continue
        finally:
            seconds += time.process_time() - began
        for name, treat in TREATMENTS.items():
            exact[name] += marker.extract(treat(marked)).message == TEXT
    return {"refused": refused, "exact": exact, "seconds_to_embed": seconds / len(images)}


def main() -> None:
    chosen = begin(xray_options(__doc__, images=16))
    images = [enlarged(path, SIZE, seed) for seed, path in enumerate(unseen_xrays(chosen))]
    marker = sw.watermark.Watermarker.load()
    found = []
    for side in (SIZE // 4, SIZE):
        view.SIDE = side
        for floor in (40.0, 45.0, 50.0):
            found.append({"seen_at": side, "floor": floor, **measure(marker, images, floor)})
            print(found[-1], flush=True)
    rows = [
        (
            f"{each['seen_at']} x {each['seen_at']}",
            f"{each['floor']:g}",
            each["refused"],
            *each["exact"].values(),
            f"{each['seconds_to_embed']:.2f}",
        )
        for each in found
    ]
    page = [
        "# Large images: marked at a fraction of their size, or whole",
        "",
        f"{len(images)} X-rays of {SIZE} x {SIZE}, scaled up from smaller ones with noise. How many return exactly the "
        "message; seconds are processor time of one thread. 50% and 25%: made smaller and back.",
        "",
        *table(["Seen by the network as", "Floor, dB", "Refused", *TREATMENTS, "s to embed"], rows),
    ]
    keep(__file__, chosen, {"images": len(images), "found": found}, page)


if __name__ == "__main__":
    main()
