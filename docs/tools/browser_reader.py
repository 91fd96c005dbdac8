"""Puts beside the page that reads marks what it needs: the network, tables, and two packages of npm.

The network is the one that ``floormark`` ships, and the tables are computed by it, so that no copy can be out of date.
``make docs`` fetches the packages; without them the site is built all the same, and the page says what is missing.
"""

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger

from floormark import Watermarker, network, periods, prepared, registration, tiling
from floormark.payload import Kind, bch, derived
from floormark.payload.codec import Codec
from floormark.payload.message import mask, permutation

NETWORK = "lattice-decoder.onnx"
PACKAGES = Path("build/npm/node_modules")
WASM = "ort-wasm-simd-threaded"
COPIED = {
    "onnxruntime-web": ("onnxruntime-web/dist", "ort.wasm.min.mjs", f"{WASM}.mjs", f"{WASM}.wasm"),
    "noble-hashes": ("@noble/hashes", "LICENSE", "blake2.js", "_blake.js", "_md.js", "_u64.js", "utils.js"),
}
"""By their folder beside the page: the folder in a package, and of its files those that are needed."""
CONSTANTS = {
    network: ("CELL", "TILE"),
    prepared: (
        "NETWORK_SIDE",
        "PICTURE_SIDE",
        "MAX_NETWORK_PIXELS",
        "COVERED_SHAPES",
        "COVERED_RANGE",
        "MIN_UNCOVERED",
    ),
    registration: ("SHARP_SCALE", "TILE_SIGMA"),
    periods: ("WHITENED_RANGE", "FLAT_VARIANCE"),
    tiling: ("PILOTS", "ALIGNED_PILOTS", "MIN_ALIGNED_SCORE"),
}
log = get_plugin_logger("reader")


def on_post_build(*, config: MkDocsConfig) -> None:
    """Complete the page of the site."""
    root = Path(config.docs_dir).parent
    complete(Path(config.site_dir) / "read", root / PACKAGES)


def complete(folder: Path, packages: Path) -> bool:
    """Complete a copy of the page; whether nothing is missing."""
    (folder / NETWORK).write_bytes((resources.files("floormark") / NETWORK).read_bytes())
    marker = Watermarker.load()
    (folder / "tables.bin").write_bytes(tables(marker))
    (folder / "tables.json").write_text(json.dumps(known(marker.codec)))
    if not packages.is_dir():
        log.info("read/ is without the packages of npm: make docs fetches them")
        return False
    for name, (package, *files) in COPIED.items():
        (folder / "packages" / name).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(packages / package / file, folder / "packages" / name)
    return True


def known(codec: Codec) -> dict[str, Any]:
    """The constants by name, and what the codec without a key is."""
    found = {name: getattr(module, name) for module, names in CONSTANTS.items() for name in names}
    layouts = [
        {"length": each.length, "checksum": each.checksum, "correctable": each.code.correctable}
        for each in codec.layouts
    ]
    exponent = codec.layouts[0].code.exponent
    found["codec"] = {
        "bits": codec.bits,
        "content_bits": codec.content_bits,
        "versions": codec.versions,
        "kinds": [kind.name.lower() for kind in Kind],
        "layouts": layouts,
        "exponent": exponent,
        "polynomial": bch.PRIMITIVE[exponent],
        "checksum_key": derived(None, "checksum", 64).hex(),
    }
    return found


def tables(marker: Watermarker) -> bytes:
    """The pilots as an unmoved image is compared with them, then order and mask of the bits of each pilot."""
    pilots = marker.scheme.pilots._pilots
    levels = np.rint(pilots * (32767 / np.abs(pilots).max())).astype("<i2")
    bits = marker.codec.bits
    order_and_mask = [drawn(None, bits, str(number)) for number in range(len(pilots)) for drawn in (permutation, mask)]
    return bytes(levels.tobytes() + np.concatenate(order_and_mask).astype(np.uint8).tobytes())
