"""Networks that hide a message in an image and read it back."""

from samplewise.watermark.networks.base import Network
from samplewise.watermark.networks.hidden import Hidden
from samplewise.watermark.networks.swift import Swift

__all__ = ["NETWORKS", "Hidden", "Network", "Swift"]

NETWORKS: dict[str, type[Network]] = {"hidden": Hidden, "swift": Swift}
"""By the name that commands and files use. A new network takes its class and a line here."""
