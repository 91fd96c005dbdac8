"""One image is read, windowed and measured once, whatever is done with it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from floormark import Payload, Watermarker, display_range, imageio, network, prepared
from floormark.files import marking as file_marking
from floormark.files.folder import extract_file
from floormark.network import Lattice
from marking import marking
from natural_images import natural_image

MARKER = Watermarker.load()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these functions is called."""
    calls: Counter[str] = Counter()

    def count(place: Any, name: str, label: str = "") -> None:
        function: Callable[..., Any] = getattr(place, name)

        def called(*arguments: Any, **options: Any) -> Any:
            calls[label or name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(place, name, called)

    for module in (prepared,):
        for name in ("shown_range", "relative_floors", "resample"):
            count(module, name)
    for module in (display_range, network):
        count(module, "calmness", f"calmness in {module.__name__}")
    for module in (imageio, file_marking):
        count(module, "read")
    count(Lattice, "encode")
    return calls


@pytest.mark.parametrize("deep", [False, True])
def test_marking_a_file_measures_it_once(deep: bool, counted: Counter[str], tmp_path: Path) -> None:
    pixels: Any = natural_image(height=300, width=280)
    Image.fromarray(pixels.astype(np.uint16) * 16 if deep else pixels).save(tmp_path / "a.png")
    marking(MARKER, Payload.of("x"), 42.0).mark_file(tmp_path / "a.png", tmp_path / "b.png")
    assert counted == {
        "read": 2,  # the image, and what was written of it
        "shown_range": 2,  # of the image and of the marked one: a reader knows only that
        "resample": 2,
        "relative_floors": 1,
        "encode": 1,
        "calmness in floormark.display_range": 1,  # of the image
        "calmness in floormark.network": 1,  # of what the network is given
    }
    counted.clear()
    assert extract_file(MARKER, tmp_path / "b.png")[0].message == "x"
    assert counted == {"shown_range": 1, "resample": 1}  # its own reading is counted where it is bound


def test_searching_for_the_highest_floor_measures_the_image_once(counted: Counter[str]) -> None:
    with pytest.raises(RuntimeError, match="highest floor"):
        MARKER.embed(natural_image(height=256, width=264), "x", psnr=72)
    trials = counted["resample"] - 1
    assert trials > 4
    assert counted == {
        "shown_range": trials + 1,
        "resample": trials + 1,
        "relative_floors": 1,
        "encode": 1,
        "calmness in floormark.display_range": 1,
        "calmness in floormark.network": 1,
    }
