"""Folders of pictures, ChestX-ray8 among them: found, split by patient, decoded once into a memory-mapped store."""

from studies.pictures.listing import PATHOLOGIES, Listing, find
from studies.pictures.prepare import is_unfinished, prepare
from studies.pictures.split import PARTS, Part, Split
from studies.pictures.store import PictureData, Seen, Store

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
