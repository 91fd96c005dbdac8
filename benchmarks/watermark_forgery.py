"""How often a forged or moved mark is believed, and how often a true one is doubted.

    python benchmarks/watermark_forgery.py --data ChestX-ray8/px1024/images --split chest.store/split.json

All at 45 dB, with a key and without one. ``copy``: the mark of one image on another, once as the exact residual, once
as what a blur takes away, edges cut, at 38 dB. ``average``: the same of many images with one message, on average, put
into an unmarked one as strong as a mark, or taken out of one of them, as strong and stronger. ``raw bits``: read by the
network and written into another image beside the same pilot, which takes no key. ``true`` and ``imposters``: whether
true marks are held for copies after the usual attacks, and whether exact copies are told from them. A forgery is
believed if its message is read and not said to belong to another image.

Killed, it goes on where it was. ``--before`` keeps the numbers as those of an earlier version, to compare with.
"""

import itertools
import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from common import Pixels, begin, grey, keep, psnr, table, unseen_xrays, xray_options
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from workfile import COMMIT, Record, records, work_through

from floormark import RefusedError, Watermarker
from floormark.network import pilot_tiles
from floormark.payload import Key
from floormark.prepared import PreparedImage
from floormark.strength import fit_to_floor
from studies.watermark.noise import parse_attack

FLOOR = 45.0
COPIED = 38.0
"""dB that a forger accepts."""
SIGMAS = 1.0, 2.0, 4.0
"""Of the blurs that a forger tries."""
EDGE = 6.0
"""Levels: what a blur takes away beyond that is the image's edge and not the mark."""
TAKEN = FLOOR, FLOOR - 3.0
"""dB of what is taken out: as much as was put in, and twice that."""
KEYS = {"key": Key(b"of the owner of the images"), "no key": None}
ATTACKS = {
    "as written": "identity",
    "JPEG 50": "jpeg(50)",
    "resize to 50 %": "resize(0.5)",
    "window of 70 %": "window(0.7)",
    "gamma 0.7": "gamma(0.7)",
    "cut to half the area": "crop(0.5)",
}
SAME = b"the same one"
CASES = [
    *("copy, exact residual", *(f"copy, blur {sigma:g}" for sigma in SIGMAS), "imposters", "raw bits moved"),
    *(f"average put in, blur {sigma:g}" for sigma in SIGMAS),
    *(f"average taken out at {decibels:g} dB, blur {sigma:g}" for decibels in TAKEN for sigma in SIGMAS),
    *(f"true, {attack}" for attack in ATTACKS),
]
"""In the order of the page."""
BELIEVED = ("True", "None")


@dataclass(frozen=True)
class Task:
    """One attack on one image, or on several for ``others``."""

    part: str
    key: str
    files: tuple[Path, ...]
    image: int
    others: tuple[int, ...] = ()

    @property
    def name(self) -> Record:
        return {"part": self.part, "key": self.key, "image": self.image, "others": list(self.others)}


@lru_cache(maxsize=2)
def marker(key: str) -> Watermarker:
    return Watermarker.load(key=KEYS[key])


@lru_cache(maxsize=64)
def marked(path: Path, key: str, message: bytes) -> Pixels:
    return np.asarray(marker(key).embed(grey(path), message, psnr=FLOOR).image, np.uint8)


def own_message(path: Path) -> bytes:
    return path.stem.encode()[-12:].rjust(12, b".")


def high_pass(image: Pixels, sigma: float) -> NDArray[np.float64]:
    values = image.astype(np.float64)
    return (values - gaussian_filter(values, sigma, mode="nearest")).clip(-EDGE, EDGE)


def added(image: Pixels, residual: NDArray[np.float64]) -> Pixels:
    return np.rint(image + residual).clip(0, 255).astype(np.uint8)


def added_at(image: Pixels, residual: NDArray[np.float64], decibels: float) -> Pixels:
    """With as much of the residual as leaves the image so many dB; what is clipped may leave it a little more."""
    rms = float(np.sqrt(np.mean(np.square(residual))))
    return added(image, residual * (255.0 / 10.0 ** (decibels / 20.0) / rms))


def read(key: str, image: Pixels, message: bytes) -> Record:
    """Whether the message is there, another one, and whether it is said to belong."""
    found = marker(key).extract(image)
    belongs = getattr(found, "belongs", None)
    return {"read": found.message == message, "any": found.message is not None, "belongs": str(belongs)}


def copies(task: Task) -> Iterator[Record]:
    source, target = (task.files[number] for number in (task.image, *task.others))
    message, cover = own_message(source), grey(target)
    theirs = marked(source, task.key, message)
    forged = {"copy, exact residual": added(cover, theirs.astype(np.float64) - grey(source))}
    forged |= {f"copy, blur {sigma:g}": added_at(cover, high_pass(theirs, sigma), COPIED) for sigma in SIGMAS}
    for case, image in forged.items():
        yield {"case": case, "psnr": psnr(cover, image), **read(task.key, image, message)}


@lru_cache(maxsize=6)
def average(files: tuple[Path, ...], key: str, sigma: float) -> NDArray[np.float64]:
    return np.asarray(np.mean([high_pass(marked(path, key, SAME), sigma) for path in files], axis=0))


def averages(task: Task) -> Iterator[Record]:
    """``others`` are those averaged, except for the last, which is not marked."""
    files = tuple(task.files[number] for number in task.others[:-1])
    cover, clean = grey(task.files[task.image]), grey(task.files[task.others[-1]])
    ours = marked(task.files[task.image], task.key, SAME)
    for sigma in SIGMAS:
        mean = average(files, task.key, sigma)
        for decibels in TAKEN:
            without = added_at(ours, -mean, decibels)
            case = f"average taken out at {decibels:g} dB, blur {sigma:g}"
            yield {"case": case, "psnr": psnr(cover, without), **read(task.key, without, SAME)}
        forged = added_at(clean, mean, FLOOR)
        yield {"case": f"average put in, blur {sigma:g}", "psnr": psnr(clean, forged), **read(task.key, forged, SAME)}


def with_raw_bits_of(source: Pixels, target: Pixels, key: str) -> Pixels:
    """More than whoever has the package and no key can do: see what the network sees, and write the same elsewhere.

    The pilot is a secret too, and could be told from many images at best; here it is taken as it is.
    """
    scheme = marker(key).scheme
    decoded, prepared = scheme.decode_aligned(PreparedImage.of(source)), PreparedImage.of(target)
    assert decoded.logits is not None
    given = prepared.network_input(scheme.layout)
    (pilot,) = pilot_tiles([scheme.seeds[int(decoded.salt)]])
    encoding = scheme.network.encode(given.picture, (decoded.logits > 0).astype(np.uint8), pilot)
    residual = scheme.placed(prepared, scheme.network.draw(encoding))
    return np.asarray(fit_to_floor(prepared, residual, FLOOR), np.uint8)


def raw_bits(task: Task) -> Iterator[Record]:
    source, target = (task.files[number] for number in (task.image, *task.others))
    message, cover = own_message(source), grey(target)
    forged = with_raw_bits_of(marked(source, task.key, message), cover, task.key)
    yield {"case": "raw bits moved", "psnr": psnr(cover, forged), **read(task.key, forged, message)}


def true_ones(task: Task) -> Iterator[Record]:
    path = task.files[task.image]
    message = own_message(path)
    for case, spec in ATTACKS.items():
        image = parse_attack(spec)(marked(path, task.key, message), np.random.default_rng(task.image))
        yield {"case": f"true, {case}", **read(task.key, image, message)}


def imposters(task: Task) -> Iterator[Record]:
    source = task.files[task.image]
    message = own_message(source)
    residual = marked(source, task.key, message).astype(np.float64) - grey(source)
    for number in task.others:
        found = read(task.key, added(grey(task.files[number]), residual), message)
        yield {"case": "imposters", "target": number, **found}


PARTS = {"copy": copies, "average": averages, "raw": raw_bits, "true": true_ones, "imposters": imposters}


def work(task: Task) -> Iterator[Record]:
    try:
        for found in PARTS[task.part](task):
            yield {**task.name, **found}
    except RefusedError:
        yield {**task.name, "case": "refused"}
    yield {**task.name, "case": "done"}


def tasks(chosen: Namespace, files: tuple[Path, ...]) -> list[Task]:
    """All there are to do."""
    count, found = len(files), []
    for key in KEYS:
        for number in range(min(chosen.pairs, count)):
            found.append(Task("copy", key, files, number, ((number + 1) % count,)))
            found.append(Task("raw", key, files, number, ((number + 1) % count,)))
            found.append(Task("true", key, files, number))
        some = tuple(range(min(chosen.averaged, count - 1)))
        found += [Task("average", key, files, number, (*some, count - 1)) for number in some[: chosen.targets]]
    # Imposters with the key only: who they are does not depend on it.
    pairs = itertools.islice(((a, b) for a in range(count) for b in range(count) if a != b), chosen.imposters)
    for image, group in itertools.groupby(pairs, lambda pair: pair[0]):
        found.append(Task("imposters", "key", files, image, tuple(target for _, target in group)))
    return found


def summary(found: list[Record]) -> dict[str, Any]:
    """Counts by key and case. What was read twice, because the first time was cut short, counts once."""
    once = {(each["part"], each["key"], each["case"], each["image"], each.get("target")): each for each in found}
    groups: dict[str, dict[str, list[Record]]] = {}
    for each in once.values():
        if "read" in each:
            groups.setdefault(each["key"], {}).setdefault(each["case"], []).append(each)
    counted: dict[str, Any] = {
        key: {case: _counts(some) for case, some in cases.items()} for key, cases in groups.items()
    }
    return counted | {"refused": sum(each["case"] == "refused" for each in once.values())}


def _counts(some: list[Record]) -> dict[str, Any]:
    quality = [each["psnr"] for each in some if "psnr" in each]
    return {
        "images": len(some),
        "read": sum(each["read"] for each in some),
        "something_read": sum(each["any"] for each in some),
        "believed": sum(each["read"] and each["belongs"] in BELIEVED for each in some),
        "belongs": dict(Counter(each["belongs"] for each in some if each["read"])),
        "psnr_mean": float(np.mean(quality)) if quality else None,
    }


def page(found: dict[str, Any]) -> list[str]:
    versions = {name: found[name] for name in ("before", "now") if name in found}
    rows, all_found = [], [each["found"] for each in versions.values()]
    met = {(key, case) for each in all_found for key in KEYS for case in each.get(key, {})}
    for key, case in sorted(met, key=lambda pair: (CASES.index(pair[1]), pair[0])):
        cells = [_cell(each.get(key, {}).get(case)) for each in all_found]
        rows.append([case, key, *itertools.chain.from_iterable(cells)])
    heads = [head for name in versions for head in (f"PSNR, {name}", f"read, {name}", f"believed, {name}", "belongs")]
    return [
        "# Forged and copied marks",
        "",
        f"Marked at {FLOOR:g} dB. Read: the message is returned. Believed: and not said to belong to another image. "
        "Belongs: what is said of those that are read, where a version says so. For true marks every number should be "
        "high, for all others low; an average that is taken out should leave the message readable. "
        + "; ".join(f"{name}: {each['model']}, commit {each['commit']}" for name, each in versions.items())
        + ".",
        "",
        *table(["Case", "", *heads], rows),
    ]


def _cell(each: dict[str, Any] | None) -> list[str]:
    if each is None:
        return ["-"] * 4
    said = ", ".join(f"{name} {number}" for name, number in sorted(each["belongs"].items()))
    quality = "" if each["psnr_mean"] is None else f"{each['psnr_mean']:.1f}"
    return [quality, f"{each['read']} of {each['images']}", str(each["believed"]), said]


def main() -> None:
    numbers: dict[str, Any] = {
        "images": 40,
        "pairs": 30,
        "averaged": 20,
        "targets": 10,
        "imposters": 1000,
        "workers": 2,
    }
    parser = xray_options(__doc__, split=False, **numbers)
    parser.add_argument("--before", action="store_true", help="keep the numbers as those of an earlier version")
    chosen = begin(parser)
    files = tuple(unseen_xrays(chosen))
    path = chosen.out / "watermark_forgery.work" / "readings.jsonl"
    model = marker("no key").model
    settings = {"model": model, "seed": chosen.seed, "data": str(chosen.data), "images": len(files)}
    done = [each for each in records(path, settings) if each.pop("case") == "done"]
    work_through(path, work, [task for task in tasks(chosen, files) if task.name not in done], chosen.workers)
    kept = chosen.out / "watermark_forgery.json"
    earlier = json.loads(kept.read_text()) if kept.exists() else {}
    found = {name: earlier[name] for name in ("before",) if name in earlier}
    name = "before" if chosen.before else "now"
    found[name] = {"model": model, "commit": COMMIT, "found": summary(records(path, settings))}
    keep(__file__, chosen, found, page(found))


if __name__ == "__main__":
    main()
