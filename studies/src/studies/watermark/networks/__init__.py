"""The networks of the study, and the one file of a trained one, which the tool reads as well if its kind is shipped."""

from functools import partial
from importlib import import_module
from pkgutil import iter_modules

from floormark import network as tool
from floormark.network import Lattice, Network, network_name, save_network
from studies.watermark.networks.hidden import Discriminator, Hidden
from studies.watermark.networks.swift import Swift

__all__ = ["NETWORKS", "Discriminator", "Hidden", "Lattice", "Network", "Swift"]
__all__ += ["load_network", "network_name", "save_network"]

_modules = [tool, *(import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))]
NETWORKS: dict[str, type[Network]] = {
    name.lower(): kind
    for module in _modules
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Network) and kind is not Network
}
"""By the name that commands and files use. A new network is a module of this folder with its class."""
load_network = partial(tool.load_network, kinds=NETWORKS)
