"""The networks of the study, and the one file of a trained one, which the tool reads as well if its kind is shipped."""

from functools import partial

from studies.watermark.networks import base
from studies.watermark.networks.base import Network, network_name, save_network
from studies.watermark.networks.hidden import Discriminator, Hidden
from studies.watermark.networks.lattice import Lattice
from studies.watermark.networks.swift import Swift

__all__ = ["NETWORKS", "Discriminator", "Hidden", "Lattice", "Network", "Swift"]
__all__ += ["load_network", "network_name", "save_network"]

NETWORKS: dict[str, type[Network]] = {"lattice": Lattice, "hidden": Hidden, "swift": Swift}
"""By the name that commands and files use."""
load_network = partial(base.load_network, kinds=NETWORKS)
