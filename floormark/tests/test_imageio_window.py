"""The display window in stored values, against closed forms worked out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from dicom_files import make, real
from floormark.imageio import Window, read

HU = {"Modality": "CT", "RescaleSlope": "1", "RescaleIntercept": "-1024"}


def window(path: Path, *, bits: int = 12, dtype: Any = np.uint16, **attributes: Any) -> Window | None:
    pixels = np.zeros((2, 2), dtype)
    return read(make(path / "a.dcm", pixels, BitsStored=bits, HighBit=bits - 1, **attributes)).window


def table(first: int, values: list[int], *, bits: int = 16, as_bytes: bool = False) -> dict[str, Any]:
    item = Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [len(values), first, bits])
    if as_bytes:
        item.add_new("LUTData", "OW", np.array(values, "<u2").tobytes())
    else:
        item.add_new("LUTData", "US", values)
    return {"VOILUTSequence": [item]}


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        # c - 0.5 -+ (w - 1) / 2
        ({"WindowCenter": "2048", "WindowWidth": "4096"}, Window(0.0, 4095.0)),
        ({"WindowCenter": "100", "WindowWidth": "11"}, Window(94.5, 104.5)),
        ({"WindowCenter": ["100", "7"], "WindowWidth": ["11", "3"]}, Window(94.5, 104.5)),
        # c -+ w / 2
        ({"WindowCenter": "100", "WindowWidth": "11", "VOILUTFunction": "LINEAR_EXACT"}, Window(94.5, 105.5)),
        ({"WindowCenter": "100", "WindowWidth": "20", "VOILUTFunction": "SIGMOID"}, Window(90.0, 110.0)),
        # (39.5 -+ 199.5 + 1024) / 1
        ({**HU, "WindowCenter": "40", "WindowWidth": "400"}, Window(864.0, 1263.0, "HU")),
        # (100 -+ 50 + 10) / 2.5, and the ends change places where the slope is negative
        (
            {"WindowCenter": "100", "WindowWidth": "100", "VOILUTFunction": "LINEAR_EXACT"}
            | {"RescaleSlope": "2.5", "RescaleIntercept": "-10"},
            Window(24.0, 64.0, "", 2.5),
        ),
        (
            {"WindowCenter": "100", "WindowWidth": "100", "VOILUTFunction": "LINEAR_EXACT"}
            | {"RescaleSlope": "-0.5", "RescaleIntercept": "200", "RescaleType": "OD"},
            Window(100.0, 300.0, "OD", 0.5),
        ),
        # clipped to the bits; as narrow as one step
        ({"WindowCenter": "0", "WindowWidth": "201"}, Window(0.0, 99.5)),
        ({"WindowCenter": "4000", "WindowWidth": "4000"}, Window(2000.0, 4095.0)),
        ({"WindowCenter": "50.5", "WindowWidth": "1"}, Window(49.5, 50.5)),
        ({"WindowCenter": "0", "WindowWidth": "1"}, None),  # all of it below the first value
        ({"WindowCenter": "0.5", "WindowWidth": "1"}, Window(0.0, 1.0)),
        # what viewers show of CT
        (HU, Window(864.0, 1264.0, "HU")),
        ({**HU, "BodyPartExamined": "HEAD"}, Window(1024.0, 1104.0, "HU")),
        ({**HU, "RescaleSlope": "2"}, Window(432.0, 632.0, "HU", 2.0)),
        ({**HU, "ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, None),
        ({**HU, "RescaleType": "US"}, None),
        ({"Modality": "CT"}, None),  # without a rescale, values are not in HU
        ({"Modality": "CR"}, None),
        ({**HU, "RescaleType": "Mrs. Miller", "WindowCenter": "0", "WindowWidth": "11"}, Window(1018.5, 1028.5)),
        # tables: where the output changes
        (table(100, [5, 5, 6, 9, 9, 9]), Window(101.0, 103.0)),
        (table(100, [5, 5, 6, 9, 9, 9], as_bytes=True), Window(101.0, 103.0)),
        ({**HU, **table(-10, [0, 1, 2, 3])}, Window(1014.0, 1017.0, "HU")),
        (table(100, [5, 5, 5]), None),
        ({**table(100, [0, 1, 2, 3]), "WindowCenter": "100", "WindowWidth": "101"}, Window(100.0, 103.0)),
        # not valid
        ({"WindowCenter": "100", "WindowWidth": "0"}, None),
        ({"WindowCenter": "100", "WindowWidth": "-5"}, None),
        ({"WindowCenter": "100"}, None),
        ({"WindowCenter": "", "WindowWidth": ""}, None),
        ({"WindowCenter": "9e9", "WindowWidth": "5"}, None),
        ({"WindowCenter": "100", "WindowWidth": "5", "RescaleSlope": "0", "RescaleIntercept": "0"}, None),
        ({"WindowCenter": "100", "WindowWidth": "5", "ModalityLUTSequence": [Dataset()]}, None),
        ({"VOILUTSequence": [Dataset()]}, None),
        ({"VOILUTSequence": []}, None),
    ],
)
def test_the_window_in_stored_values(attributes: dict[str, Any], expected: Window | None, tmp_path: Path) -> None:
    assert window(tmp_path, **attributes) == expected


def test_signed_values_have_a_signed_window(tmp_path: Path) -> None:
    found = window(tmp_path, bits=16, dtype=np.int16, Modality="CT", RescaleSlope="1", RescaleIntercept="0")
    assert found == Window(-160.0, 240.0, "HU")


def test_an_enhanced_image_has_its_window_in_the_groups(tmp_path: Path) -> None:
    rescale, shown, group = Dataset(), Dataset(), Dataset()
    rescale.RescaleSlope, rescale.RescaleIntercept, rescale.RescaleType = "2", "-100", "HU"
    shown.WindowCenter, shown.WindowWidth = "0.5", "101"
    group.PixelValueTransformationSequence, group.FrameVOILUTSequence = [rescale], [shown]
    assert window(tmp_path, SharedFunctionalGroupsSequence=[group]) == Window(25.0, 75.0, "HU", 2.0)


def test_it_stays_with_other_pixels_and_colours_have_none(tmp_path: Path) -> None:
    picture = read(real("CT_small.dcm"))
    assert picture.window == Window(864.0, 1264.0, "HU")
    assert picture.with_pixels(picture.pixels + 1).window == picture.window
    picture.write(tmp_path / "a.dcm", picture.pixels)
    assert read(tmp_path / "a.dcm").window == picture.window
    colour = make(tmp_path / "b.dcm", np.zeros((2, 2, 3), np.uint8), WindowCenter="5", WindowWidth="5")
    assert read(colour).window is None


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=16), st.integers(-9, 9), st.just(1e-300), st.just(-1e300)
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), dtype=st.sampled_from([np.uint16, np.int16]))
def test_whatever_numbers_there_are_it_is_sane_or_none(
    numbers: tuple[float, float, float, float], dtype: Any, tmp_path: Path
) -> None:
    names = ("WindowCenter", "WindowWidth", "RescaleSlope", "RescaleIntercept")
    values: dict[str, Any] = {name: f"{number:.8g}" for name, number in zip(names, numbers, strict=True)}
    found = window(tmp_path, dtype=dtype, **values)
    low = 0 if dtype is np.uint16 else -2048
    if found is not None:
        assert low <= found.low <= found.high - 1 + 1e-9
        assert found.high <= low + 4095
        assert found.step == abs(float(values["RescaleSlope"])) > 0
