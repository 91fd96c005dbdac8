"""Folders of pictures, ChestX-ray8 among them: found, split by patient, decoded once into a memory-mapped store."""

from samplewise.data.pictures.chest import PATHOLOGIES
from samplewise.data.pictures.listing import Listing, find
from samplewise.data.pictures.prepare import Progress, prepare
from samplewise.data.pictures.split import PARTS, Part, Split
from samplewise.data.pictures.store import PictureData, Store

__all__ = ["PARTS", "PATHOLOGIES", "Listing", "Part", "PictureData", "Progress", "Split", "Store", "find", "prepare"]
