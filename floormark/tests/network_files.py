"""Small networks, and files of networks of which something was changed, whose digest fits all the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from floormark.network import NETWORK_FORMAT, Lattice, Weights, save_weights, weight_shapes, weights_digest


def small_network(bits: int = 128, seed: int = 0) -> Lattice:
    """A network of width 8 with random weights."""
    random = np.random.default_rng(seed)
    weights = {
        name: random.normal(0.0, 0.1, shape).astype(np.float32) for name, shape in sorted(weight_shapes(8).items())
    }
    return Lattice.of({"bits": bits, "size": 64, "channels": 1, "width": 8}, weights)


SMALL = small_network()


def save(path: Path, network: Lattice = SMALL) -> None:
    save_weights(path, "lattice", network.arguments, network.weights)


def rewritten(
    path: Path, arguments: dict[str, Any] | None = None, weights: Weights | None = None, **header: str
) -> None:
    """Write a small network, with other arguments, weights or entries of the header."""
    kept = dict(SMALL.weights if weights is None else weights)
    entries = {
        "format": NETWORK_FORMAT,
        "kind": "lattice",
        "arguments": json.dumps({**SMALL.arguments, **(arguments or {})}),
    }
    entries |= header
    save_file(kept, path, metadata={"digest": weights_digest(entries, kept), **entries})
