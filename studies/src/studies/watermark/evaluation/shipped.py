"""Every image of a data set marked by the tool itself: what ``embed`` makes of it and what ``extract`` reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from floormark import Payload, RefusedError, Watermarker
from samplewise.samples import mix
from samplewise.storage import ensure_writable
from studies.pictures import PictureData
from studies.watermark.evaluation.measure import Measured, OnProgress, file_name, quality, round_trip, to_attack
from studies.watermark.networks import Lattice
from studies.watermark.noise import Chain
from studies.watermark.operators import Pixels

MESSAGE_BYTES = 8
"""Length of each image's message, that of an identifier; shorter if the network holds less."""
UNREAD_ERROR = 0.5
"""Bit error that stands for a message that was not read: what guessing gives."""
GIVE_UP_AFTER = 16
"""Images: if the tool refuses the first ones, which takes long, it is not asked for the others."""


def payload_of(number: int, marker: Watermarker) -> Payload:
    """The message that belongs to an image's number."""
    length = min(MESSAGE_BYTES, marker.codec.max_bytes)
    return Payload.of(hashlib.shake_256(f"message {number}".encode()).digest(length))


def ship(marker: Watermarker, pixels: Pixels, number: int, floor: float) -> Pixels:
    """An image ``(H, W)`` as :func:`measure_shipped` has marked it; it raises :class:`RefusedError` where it did."""
    marked: Pixels = marker.embed(pixels, payload_of(number, marker), psnr=floor).image
    return marked


def measure_shipped(
    network: Lattice,
    data: PictureData,
    *,
    floor: float,
    attacks: Sequence[Chain] = (),
    attack_images: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    keep: Path | None = None,
    watch: OnProgress | None = None,
) -> tuple[Measured, dict[str, str]]:
    """Mark each image with its own message as ``embed`` does, and read it from the file as ``extract`` does.

    Strength up to the floors of image and patches, the code that corrects errors, rounding to 8 bits and the
    registration of moved images are all those of the tool. Arguments are as for
    :func:`~studies.watermark.evaluation.measure.measure`, and ``floor`` is the PSNR in dB; attacks may be geometric.

    Returns:
        What was measured on the files that were written, and why the tool refused to mark the others. If it refuses the
        first 16, the others are not tried and count as refused.
    """
    marker = Watermarker(network.in_the_tool())
    attacked = to_attack(data, attack_images)
    images, names = data.store.images, data.names

    def evaluate(folder: Path, place: int) -> dict[str, float] | str:
        row = int(data.rows[place])
        cover, payload = images[row], payload_of(row, marker)
        try:
            embedded = marker.embed(cover, payload, psnr=floor)
        except RefusedError as error:
            return str(error)
        marked = round_trip(folder / "grey" / file_name(names[place]), embedded.image, keep=keep is not None)
        fidelity = embedded.certificate.fidelity
        found = {f"grey/{key}": value for key, value in quality(fidelity).items()}
        found["grey/floor_kept"] = min((*fidelity.floors, found["grey/psnr"]))

        def reading(pixels: Pixels, key: str) -> None:
            extracted = marker.extract(pixels)
            right = extracted.payload == payload
            found[f"grey/{key}bit_error"] = extracted.corrected_errors / network.bits if right else UNREAD_ERROR
            found[f"grey/{key}message"] = float(right)

        reading(marked, "")
        for attack in attacks if attacked[place] else ():
            rng = np.random.default_rng(mix(seed, str(attack), row))
            reading(attack(marked, rng, cover), f"{attack} ")
        return found

    results: list[dict[str, float] | str] = []
    places = range(len(data))
    with TemporaryDirectory(prefix="studies-") as scratch, ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        folder = Path(scratch) if keep is None else ensure_writable(keep)
        for block in (places[:GIVE_UP_AFTER], places[GIVE_UP_AFTER:]):
            if results and all(isinstance(one, str) for one in results):
                results += ["not tried, since the first were refused"] * len(block)
                break
            for one in pool.map(partial(evaluate, folder), block):
                results.append(one)
                if watch is not None:
                    watch(len(results), len(data))
    refused = {name: one for name, one in zip(names, results, strict=True) if isinstance(one, str)}
    rows = {place: one for place, one in enumerate(results) if not isinstance(one, str)}
    part = PictureData(data.store, data.rows[list(rows)].tolist())
    keys = dict.fromkeys(key for row in rows.values() for key in row)
    columns = {key: np.array([row.get(key, np.nan) for row in rows.values()]) for key in keys}
    return Measured(network.bits, part.names, part.patients, part.rows.numpy(), columns), refused
