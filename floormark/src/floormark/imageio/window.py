"""The display window of a DICOM image as a range of stored values (PS3.3, C.11.1 and C.11.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from floormark.imageio.stored import StoredImage, Window

if TYPE_CHECKING:
    from pydicom import Dataset

UNITS = frozenset({"HU", "HU_MOD", "OD", "MGML", "PCT", "ED", "EDW", "Z_EFF"})
"""That the standard defines; anything else in its place is a free text."""
HEAD_PARTS = frozenset({"HEAD", "BRAIN", "SKULL", "HEADNECK"})
BRAIN_WINDOW, SOFT_TISSUE_WINDOW = (40.0, 80.0), (40.0, 400.0)
"""Centre and width in HU of what viewers show of a CT image that says nothing of it: the narrow ones."""
MAX_ENTRIES = 1 << 16


def display_window(dataset: Dataset, image: StoredImage) -> Window | None:
    """The stored values that are shown from black to white, or None where nothing valid says so."""
    if image.pixels.ndim != 2 or _value(dataset, "ModalityLUTSequence") is not None:
        return None
    try:
        slope, intercept = _number(dataset, "RescaleSlope", 1.0), _number(dataset, "RescaleIntercept", 0.0)
        unit = _unit(dataset)
        shown = [each for each in (_from_table(dataset), _from_numbers(dataset)) if each is not None]
        if not shown and unit == "HU" and _value(dataset, "RescaleSlope") is not None:
            centre, width = BRAIN_WINDOW if dataset.get("BodyPartExamined") in HEAD_PARTS else SOFT_TISSUE_WINDOW
            shown = [(centre - width / 2, centre + width / 2)]
        if not shown:
            return None
        low, high = min(shown, key=lambda ends: ends[1] - ends[0])  # either may be used: the one that shows more
        ends = sorted(((low - intercept) / slope, (high - intercept) / slope))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # whatever a file says instead
        return None
    return _within(image, ends[0], ends[1], unit, abs(slope))


def _within(image: StoredImage, low: float, high: float, unit: str, step: float) -> Window | None:
    """The part that the bits can hold, at least one step wide; a window beside them is none of this image."""
    least, most = float(image.lowest), float(image.lowest + image.peak)
    if not all(map(math.isfinite, (low, high, step))) or low > most or high < least:
        return None
    low, high = max(low, least), min(high, most)
    if high - low < 1.0:
        low = min(max((low + high - 1.0) / 2, least), most - 1.0)
        high = low + 1.0
    return Window(low, high, unit, step)


def _from_numbers(dataset: Dataset) -> tuple[float, float] | None:
    """The ends of the first window, in units."""
    if _value(dataset, "WindowCenter") is None or _value(dataset, "WindowWidth") is None:
        return None
    centre, width = _number(dataset, "WindowCenter", 0.0), _number(dataset, "WindowWidth", 0.0)
    if not width > 0:
        return None
    if (_value(dataset, "VOILUTFunction") or "LINEAR") == "LINEAR":
        centre, width = centre - 0.5, max(width - 1.0, 0.0)
    return centre - width / 2, centre + width / 2


def _from_table(dataset: Dataset) -> tuple[float, float] | None:
    """The ends of the input of the first lookup table between which its output changes."""
    table = _value(dataset, "VOILUTSequence")
    if table is None:
        return None
    entries, first, _ = (int(value) for value in table.LUTDescriptor)
    entries = entries % MAX_ENTRIES or MAX_ENTRIES  # 16 bits do not hold the number itself
    data: Any = table.LUTData
    if isinstance(data, bytes):
        data = np.frombuffer(data, np.uint8 if len(data) < 2 * entries else "<u2")
    changes = np.flatnonzero(np.diff(np.atleast_1d(np.asarray(data, np.int64))[:entries]))
    return (float(first + changes[0]), float(first + changes[-1] + 1)) if changes.size else None


def _unit(dataset: Dataset) -> str:
    said = _value(dataset, "RescaleType")
    if said is None and dataset.get("Modality") == "CT" and "LOCALIZER" not in (dataset.get("ImageType") or ()):
        return "HU"
    return said if said in UNITS else ""


def _number(dataset: Dataset, name: str, default: float) -> float:
    found = _value(dataset, name)
    return default if found is None else float(found)


def _value(dataset: Dataset, name: str) -> Any:
    """The first value of an attribute of the image or, in an enhanced one, of its frame; None if it is empty."""
    for place in _places(dataset):
        found = place.get(name)
        if found is not None and not isinstance(found, str | bytes) and hasattr(found, "__len__"):
            found = found[0] if len(found) else None
        if found not in (None, ""):
            return found
    return None


def _places(dataset: Dataset) -> Iterator[Dataset]:
    yield dataset
    for groups in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        for group in dataset.get(groups) or ():
            for macro in ("FrameVOILUTSequence", "PixelValueTransformationSequence"):
                yield from group.get(macro) or ()
