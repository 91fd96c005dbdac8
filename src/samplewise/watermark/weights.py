"""Trained networks on disk: one file with the weights and all it takes to build the network."""

from pathlib import Path

from samplewise.checkpoint import load_state, save_state
from samplewise.errors import CheckpointError
from samplewise.watermark.networks import NETWORKS, Network

__all__ = ["SHIPPED_FILE", "load_network", "save_network"]

SHIPPED_FILE = "swift.safetensors"
"""The one that comes with the package, beside this module."""
FORMAT = "samplewise-network-1"


def save_network(path: Path, network: Network) -> None:
    """Write ``network``, whole or not at all."""
    name = next(name for name, kind in NETWORKS.items() if type(network) is kind)
    weights = {key: value.cpu() for key, value in network.state_dict().items()}
    save_state(path, {"format": FORMAT, "network": name, "arguments": network.arguments, "model": weights})


def load_network(path: Path) -> Network:
    """Build the network that :func:`save_network` wrote, in eval mode.

    Raises:
        CheckpointError: the file is torn, foreign or of another version.
    """
    state = load_state(path)
    if state.get("format") != FORMAT or state.get("network") not in NETWORKS:
        raise CheckpointError(f"{path}: is not a watermarking network of this version of the library")
    try:
        network = NETWORKS[state["network"]](**state["arguments"])
        network.load_state_dict(state["model"])
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path}: does not fit the network it names: {' '.join(str(error).split())}") from error
    return network.eval()
