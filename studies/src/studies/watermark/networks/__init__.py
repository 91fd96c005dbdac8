"""The networks of the study, and the file of a trained one; of a lattice the tool reads it too."""

from functools import partial

from studies.watermark.networks import base
from studies.watermark.networks.base import Network, network_name, save_network
from studies.watermark.networks.hidden import Discriminator, Hidden
from studies.watermark.networks.lattice import Lattice
from studies.watermark.networks.swift import Swift

__all__ = ["NETWORKS", "Discriminator", "Hidden", "Lattice", "Network", "Swift"]
__all__ += ["load_network", "network_name", "save_network"]

NETWORKS: dict[str, type[Network]] = {"lattice": Lattice, "hidden": Hidden, "swift": Swift}
"""The networks by the names that commands and files use."""
load_network = partial(base.load_network, kinds=NETWORKS)
