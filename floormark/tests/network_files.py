"""Files of networks of which something was changed, whose digest fits all the same."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from floormark import network
from floormark.network import Lattice

SMALL = Lattice(128, size=64, width=8)


def rewritten(
    path: Path,
    arguments: dict[str, Any] | None = None,
    weights: dict[str, Tensor] | None = None,
    **header: str,
) -> None:
    """Write a small network, with other arguments, weights or entries of the header."""
    kept = dict(SMALL.state_dict()) if weights is None else weights
    entries = {
        "format": network.NETWORK_FORMAT,
        "kind": "lattice",
        "arguments": json.dumps(SMALL.arguments | (arguments or {})),
    }
    entries |= header
    save_file(kept, path, metadata={"digest": network._digest(entries, kept), **entries})
