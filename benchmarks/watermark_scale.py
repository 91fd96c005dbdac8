"""Large images: the residual made at a fraction of the size and scaled, against one made at full size.

X-rays that were not used in training are scaled up to 1024 x 1024, with noise, marked both ways at the same floor, and
read after what may happen to a file. ``samplewise.watermark.view.SIDE`` is the choice that came out of it.

    python benchmarks/watermark_scale.py --data ChestX-ray8/px256/images --split chest.store/split.json
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from watermark_peers import jpeg, saved

import samplewise as sw
from samplewise.checkpoint import write_json
from samplewise.errors import RefusedError
from samplewise.provenance import provenance
from samplewise.watermark import view

TEXT = "patient 4711"
SIZE = 1024


def resized(share: float) -> Any:
    def attack(pixels: Any) -> Any:
        image = Image.fromarray(pixels)
        side = round(share * image.width)
        small = image.resize((side, side), Image.Resampling.BICUBIC)
        return np.asarray(small.resize(image.size, Image.Resampling.BICUBIC))

    return attack


TREATMENTS = {"PNG": saved, "JPEG 75": jpeg(75), "JPEG 50": jpeg(50), "50%": resized(0.5), "25%": resized(0.25)}


def enlarged(path: Path, seed: int) -> Any:
    image = Image.open(path).convert("L").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    noisy = np.asarray(image, np.float64) + np.random.default_rng(seed).normal(0.0, 1.5, (SIZE, SIZE))
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def measure(marker: sw.watermark.Watermarker, images: list[Any], floor: float) -> dict[str, Any]:
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
    parser = argparse.ArgumentParser(description="large images: scaled residual against one at full size")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/watermark"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trained = set(json.loads(arguments.split.read_text())["train"])
    unseen = [path for path in sorted(arguments.data.glob("*.png")) if path.name not in trained]
    chosen = random.Random(0).sample(unseen, arguments.images)
    images = [enlarged(path, seed) for seed, path in enumerate(chosen)]
    marker = sw.watermark.Watermarker.load()
    found = []
    for side in (SIZE // 4, SIZE):
        view.SIDE = side
        for floor in (40.0, 45.0, 50.0):
            found.append({"seen_at": side, "floor": floor, **measure(marker, images, floor)})
            print(found[-1], flush=True)
    made = provenance(seed=0)
    write_json(arguments.out / "scale.json", {"images": len(images), "found": found, "provenance": made})
    lines = [
        "# Large images: marked at a fraction of their size, or whole",
        "",
        f"{len(images)} X-rays of {SIZE} x {SIZE}, scaled up from 256 x 256 with noise. How many return exactly the "
        "message; seconds are processor time of one thread. 50% and 25%: made smaller and back.",
        "",
        f"| Seen by the network as | Floor, dB | Refused | {' | '.join(TREATMENTS)} | s to embed |",
        "|---|---|---|" + "---|" * len(TREATMENTS) + "---|",
    ]
    for each in found:
        counts = " | ".join(str(count) for count in each["exact"].values())
        lines.append(
            f"| {each['seen_at']} x {each['seen_at']} | {each['floor']:g} | {each['refused']} | {counts} | "
            f"{each['seconds_to_embed']:.2f} |"
        )
    lines += ["", f"`{made['command']}`, commit {made['commit']}."]
    (arguments.out / "scale.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
