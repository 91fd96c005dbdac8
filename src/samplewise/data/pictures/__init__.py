"""Folders of pictures, ChestX-ray8 among them: found, split by patient, decoded once into a memory-mapped store."""

from samplewise.data.pictures.listing import PATHOLOGIES, Listing, find
from samplewise.data.pictures.prepare import is_unfinished, prepare
from samplewise.data.pictures.split import PARTS, Part, Split
from samplewise.data.pictures.store import PictureData, Seen, Store

__all__ = [
    "PARTS",
    "PATHOLOGIES",
    "Listing",
    "Part",
    "PictureData",
    "Seen",
    "Split",
    "Store",
    "find",
    "is_unfinished",
    "prepare",
]
