"""Networks that hide a message in an image and read it back, and the one file of a trained one."""

import hashlib
import json
from pathlib import Path

import torch

from floormark.base_network import Network
from floormark.network import Lattice
from samplewise.errors import CheckpointError
from samplewise.storage.checkpoint import load_state, save_state
from studies.watermark.networks.hidden import Hidden
from studies.watermark.networks.swift import Swift

__all__ = ["FIRST_SHIPPED_FILE", "NETWORKS", "SHIPPED_FILE", "Hidden", "Lattice", "Network", "Swift", "load_network"]
__all__ += ["network_name", "save_network"]

NETWORKS: dict[str, type[Network]] = {"hidden": Hidden, "lattice": Lattice, "swift": Swift}
"""By the name that commands and files use. A new network takes its class and a line here."""
SHIPPED_FILE, FIRST_SHIPPED_FILE = "lattice.safetensors", "swift.safetensors"
"""The trained one that comes with the package, in the folder above, and that of the first version."""
FORMAT = "samplewise-network-1"


def _kind(network: Network) -> str:
    """The name of a network's class, as files have it."""
    return next((name for name, kind in NETWORKS.items() if type(network) is kind), type(network).__name__.lower())


def network_name(network: Network) -> str:
    """What tells a network from others in certificates: its kind, and a part of the hash of all its weights."""
    digest = hashlib.sha256(json.dumps(network.arguments, sort_keys=True).encode())
    for key, value in sorted(network.state_dict().items()):
        digest.update(f"{key}:{value.dtype}:{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"{_kind(network)}-{digest.hexdigest()[:12]}"


def save_network(path: Path, network: Network) -> None:
    """Write ``network``, whole or not at all."""
    weights = {key: value.cpu() for key, value in network.state_dict().items()}
    save_state(path, {"format": FORMAT, "network": _kind(network), "arguments": network.arguments, "model": weights})


def load_network(path: Path) -> Network:
    """Build the network that :func:`save_network` wrote, in eval mode."""
    state = load_state(path)
    if state.get("format") != FORMAT or state.get("network") not in list(NETWORKS):
        raise CheckpointError(f"{path}: is not a watermarking network of this version of the library")
    try:
        with torch.device("meta"):  # the weights of the file are all that takes memory, whatever it asks for
            network = NETWORKS[state["network"]](**state["arguments"])
        if network.channels not in (1, 3):
            raise ValueError(f"expected images of 1 or 3 channels, got {network.channels}")
        for key, value in network.state_dict().items():
            if state["model"][key].dtype != value.dtype:
                raise TypeError(f"expected {key} of type {value.dtype}, got {state['model'][key].dtype}")
        network.load_state_dict(state["model"], assign=True)
    except (KeyError, TypeError, RuntimeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: does not fit the network it names: {' '.join(str(error).split())}") from error
    return network.eval()
