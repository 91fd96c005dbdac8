"""The networks of the study, and the one file of a trained one, which the tool reads as well if its kind is shipped."""

from pathlib import Path

from floormark import network as tool
from floormark.network import Lattice, Network, network_name, save_network
from studies.watermark.networks.hidden import Discriminator, Hidden
from studies.watermark.networks.swift import Swift

# fmt: off
__all__ = [
    "NETWORKS", "Discriminator", "Hidden", "Lattice", "Network", "Swift", "load_network", "network_name",
    "save_network",
]
# fmt: on

NETWORKS: dict[str, type[Network]] = {"hidden": Hidden, "lattice": Lattice, "swift": Swift}
"""By the name that commands and files use. A new network takes its class and a line here."""


def load_network(path: Path) -> Network:
    """Build the network that :func:`save_network` wrote, in eval mode."""
    return tool.load_network(path, NETWORKS)
