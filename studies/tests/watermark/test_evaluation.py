import csv
import math
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from plain_networks import SIZE, Plain, make_store
from scipy.stats import binomtest
from torch import Tensor

from floormark import Watermarker
from floormark.network import SHIPPED_FILE
from natural_images import natural_image
from samplewise.errors import DataError, NotFiniteError
from studies.pictures import PictureData, Store, prepare
from studies.watermark.evaluation import Measured, measure, measure_shipped, summarise
from studies.watermark.evaluation.shipped import payload_of
from studies.watermark.evaluation.summary import capacity, share_of
from studies.watermark.networks import Hidden, Lattice, Swift, load_network
from studies.watermark.noise import parse_attacks
from studies.watermark.pipeline import fixed_messages


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def data(store: Store) -> PictureData:
    return store.select()


def same(first: Measured, second: Measured) -> bool:
    columns = [one.columns for one in (first, second)]
    return columns[0].keys() == columns[1].keys() and all(
        np.array_equal(values, columns[1][key], equal_nan=True) for key, values in columns[0].items()
    )


def test_quality_is_that_of_the_files_on_disk(data: PictureData, tmp_path: Path) -> None:
    network = Plain(low=0.301, high=0.698)
    found = measure(network, data, keep=tmp_path).columns
    for place, name in enumerate(data.names):
        with Image.open(tmp_path / "grey" / name) as picture:
            assert picture.mode == "L"
            kept = np.asarray(picture).astype(float)
        cover = data.store.images[data.rows[place]].astype(float)
        bits = fixed_messages(data.rows[place : place + 1], 8)[0].numpy()
        assert (kept[0, :8] == np.where(bits > 0.5, 178, 77)).all()  # 0.698 * 255 = 177.99, 0.301 * 255 = 76.76
        difference = np.abs(kept - cover)
        assert found["grey/psnr"][place] == pytest.approx(10 * math.log10(255**2 / (difference**2).mean()), abs=1e-9)
        assert found["grey/max_difference"][place] == difference.max()
        assert found["grey/changed"][place] == (difference > 0).mean()
        assert 0 < found["grey/ssim"][place] < 1
    assert not found["grey/bit_error"].any()
    assert not np.array_equal(found["grey/psnr"], found["float/psnr"])


def test_floats_hold_what_files_cannot(data: PictureData) -> None:
    # Both values are above white: a file clamps them to the same grey.
    found = measure(Plain(low=1.1, high=1.9), data).columns
    assert not found["float/bit_error"].any()
    zeros = 1 - fixed_messages(data.rows, 8).mean(1).double().numpy()
    assert np.allclose(found["grey/bit_error"], 1 - zeros)  # all is read as the lower value


def test_what_differs_between_channels_is_lost_in_grey(data: PictureData, tmp_path: Path) -> None:
    # Red moves the values that decide a bit; in the mean of three channels they stay on one side.
    network = Plain(channels=3, low=0.55, high=0.95, where=(0,))
    found = measure(network, data, keep=tmp_path)
    assert found.representations == ("grey", "rgb", "float")
    assert not found.columns["rgb/bit_error"].any()
    assert not found.columns["float/bit_error"].any()
    assert found.columns["grey/bit_error"].mean() > 0.2
    with Image.open(tmp_path / "rgb" / data.names[0]) as picture:
        assert picture.mode == "RGB"
    # The same change in the RGB file counts over all three channels.
    summary = summarise(found, 20.0)
    quality = summary["quality"]
    assert quality["rgb"]["max_difference"] == pytest.approx(3 * quality["grey"]["max_difference"], abs=3)


@pytest.mark.parametrize("network", [Swift(8, size=SIZE), Hidden(4, size=SIZE, width=4)])
def test_batches_threads_and_the_selection_change_nothing(data: PictureData, network: Swift | Hidden) -> None:
    attacks = parse_attacks("gaussian(0.05), crop_zero_fill(0.5) + jpeg(50), dropout(0.3)")
    network.train()
    whole = measure(network, data, attacks=attacks)
    assert all(module.training for module in network.modules())
    single = measure(network, data, attacks=attacks, batch_size=2, workers=1)
    for key, values in whole.columns.items():
        assert np.allclose(values, single.columns[key], rtol=1e-5), key
    part = PictureData(data.store, [4])
    alone = measure(network, part, attacks=attacks)
    assert alone.columns["grey/psnr"][0] == pytest.approx(whole.columns["grey/psnr"][4])
    assert all(alone.columns[key][0] == pytest.approx(whole.columns[key][4]) for key in alone.columns)


def test_attacks_hit_the_files(data: PictureData) -> None:
    attacks = parse_attacks("identity, brightness(0.1), dropout(1), gaussian(0.3)")
    found = measure(Plain(), data, attacks=attacks)
    assert not found.columns["grey/identity bit_error"].any()
    ones = fixed_messages(data.rows, 8).mean(1).double().numpy()
    assert np.allclose(found.columns["grey/brightness(0.1) bit_error"], ones)  # darker than the middle: all zeros
    assert found.columns["grey/dropout(1) bit_error"].mean() > 0.2  # the cover is back
    noisy = found.columns["grey/gaussian(0.3) bit_error"]
    assert 0 < noisy.mean() < 0.5
    again = measure(Plain(), data, attacks=attacks)
    assert same(found, again)
    other = measure(Plain(), data, attacks=attacks, seed=1)
    assert not np.array_equal(other.columns["grey/gaussian(0.3) bit_error"], noisy)


def test_few_images_are_attacked_evenly(data: PictureData) -> None:
    found = measure(Plain(), data, attacks=parse_attacks("identity"), attack_images=3, batch_size=2)
    assert np.flatnonzero(~np.isnan(found.columns["grey/identity bit_error"])).tolist() == [0, 3, 6]
    assert summarise(found, 20.0)["attacks"][0]["reading"]["error_free"]["samples"] == 3


def test_spread_takes_pictures_evenly(data: PictureData) -> None:
    assert data.spread(3).rows.tolist() == [0, 3, 6]
    assert data.spread(100).rows.tolist() == data.rows.tolist()
    assert data.spread(None).rows.tolist() == data.rows.tolist()


def test_temporary_files_are_gone(data: PictureData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measure(Plain(), data)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_judged_is_refused(data: PictureData, store: Store) -> None:
    with pytest.raises(DataError, match="size 32"):
        measure(Plain(size=32), data)
    network = Plain()
    torch.nn.init.constant_(network.weight, math.nan)
    with pytest.raises(NotFiniteError, match="its training diverged"):
        measure(network, data)


def test_names_that_become_one_file_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.bmp", "a.bmp.png"):
        Image.new("L", (SIZE, SIZE), 100).save(folder / name)
    with pytest.raises(DataError, match="same PNG file"):
        measure(Plain(), prepare(folder, tmp_path / "store", size=SIZE, workers=1).select())


class Uneven(Plain):
    """Changes every pixel of an image the more, the higher its number, which its message tells."""

    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        numbers = (messages[:, None] == fixed_messages(torch.arange(9), self.bits)).all(2).float().argmax(1)
        return images + (numbers[:, None, None, None] + 1) / 255


def test_the_summary_names_the_worst_first(data: PictureData) -> None:
    found = measure(Uneven(16), data)
    assert found.columns["grey/max_difference"].tolist() == list(range(1, 10))
    floor = 20 * math.log10(255 / 5.5)  # images 0 to 4 are within it
    summary = summarise(found, floor)
    assert [one["name"] for one in summary["below_floor"]] == [data.names[i] for i in (8, 7, 6, 5)]
    quality = summary["quality"]["grey"]
    images, patients = quality["satisfied"], quality["patients_satisfied"]
    assert (images["held"], images["samples"]) == (5, 9)
    assert (patients["held"], patients["samples"]) == (1, 3)
    assert quality["psnr_min"] == pytest.approx(20 * math.log10(255 / 9))
    assert quality["psnr_median"] == pytest.approx(20 * math.log10(255 / 5))
    errors = [one["bit_error"] for one in summary["with_errors"]]
    assert errors == sorted(errors, reverse=True)
    assert summary["below_floor"][0] == {"name": data.names[8], "psnr": quality["psnr_min"]}
    worst = found.names[int(found.columns["grey/bit_error"].argmax())]
    assert summary["with_errors"][0]["name"] == worst


def test_without_a_floor_nothing_is_said_of_one(data: PictureData) -> None:
    summary = summarise(measure(Uneven(16), data), None)
    assert (summary["floor"], summary["below_floor"]) == (None, [])
    assert all(found["satisfied"] is found["patients_satisfied"] is None for found in summary["quality"].values())


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.sampled_from([0.9, 0.95]))
def test_the_share_has_its_exact_bound(counts: tuple[int, int], confidence: float) -> None:
    samples, held = counts
    share = share_of(np.arange(samples) < held, confidence)
    exact = binomtest(held, samples, alternative="greater").proportion_ci(confidence, method="exact")
    assert share["share"] == held / samples
    assert share["at_least"] == pytest.approx(exact.low, abs=1e-9)
    corrected = binomtest(held, samples, alternative="greater").proportion_ci(1 - (1 - confidence) / 7, method="exact")
    assert share_of(np.arange(samples) < held, confidence, 7)["at_least"] == pytest.approx(corrected.low, abs=1e-9)


def test_bounds_are_corrected_for_what_is_read_at_once_and_for_what_was_compared(data: PictureData) -> None:
    found = measure(Plain(), data, attacks=parse_attacks("identity, gaussian(0.3)"))
    plain, chose = (summarise(found, 20.0, n_comparisons=compared) for compared in (1, 5))
    for summary, compared in ((plain, 1), (chose, 5)):
        held = found.columns["grey/psnr"] >= 20.0
        assert summary["quality"]["grey"]["satisfied"] == share_of(held, 0.95, compared)
        readings = [*summary["reading"].values(), *(each["reading"] for each in summary["attacks"])]
        columns = [found.columns[f"{representation}/bit_error"] for representation in found.representations] + [
            found.reading(*each)[0] for each in found.attacks
        ]
        assert len(readings) == len(columns) == 4
        for reading, errors in zip(readings, columns, strict=True):
            assert reading["error_free"] == share_of(errors == 0, 0.95, 4 * compared)


def test_bounds_are_from_the_images_that_were_not_trained_on(data: PictureData) -> None:
    found = measure(Uneven(16), data, attacks=parse_attacks("identity"), attack_images=3)
    floor = 20 * math.log10(255 / 5.5)  # the first five of nine are within it
    for first in (9, 3, 0):  # so many are trained on; three are of one patient
        trained = np.arange(9) < first
        summary = summarise(replace(found, trained_on=trained), floor)
        held = np.arange(9) < 5
        assert summary["trained_on"] == first
        quality = summary["quality"]["grey"]
        assert quality["satisfied"]["share"] == 5 / 9
        for share, unseen in (
            (quality["satisfied"], held[first:]),
            (quality["patients_satisfied"], np.array([True, False, False])[first // 3 :]),
            (summary["attacks"][0]["reading"]["error_free"], found.reading("grey", "identity")[1][first // 3 :]),
        ):
            exact = binomtest(int(unseen.sum()), len(unseen), alternative="greater") if len(unseen) else None
            bound = exact and exact.proportion_ci(0.95, method="exact").low
            if share is summary["attacks"][0]["reading"]["error_free"]:
                bound = exact and exact.proportion_ci(1 - 0.05 / 3, method="exact").low  # three readings at once
            assert share["at_least"] == (None if bound is None else pytest.approx(bound, abs=1e-9))
            assert share["unseen"] == len(unseen)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> PictureData:
    """Two pictures that can be marked, and one that is marked already."""
    folder = tmp_path_factory.mktemp("larger")
    images = [natural_image(height=128, width=128, seed=seed) for seed in range(2)]
    for number, pixels in enumerate([*images, Watermarker.load().embed(images[0], "first", psnr=38.0).image]):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return prepare(folder, folder / "store", size=128, workers=1).select()


def test_what_the_tool_ships_is_what_is_evaluated(larger: PictureData, tmp_path: Path) -> None:
    marker, network = Watermarker.load(), load_network(Path(str(resources.files("floormark") / SHIPPED_FILE)))
    assert isinstance(network, Lattice)
    attacks = parse_attacks("flip, gaussian(0.9)")
    found, refused = measure_shipped(
        network, larger, floor=38.0, attacks=attacks, attack_images=1, workers=2, keep=tmp_path
    )
    assert list(refused) == ["2.png"]
    assert found.names == ("0.png", "1.png")
    columns = found.columns
    for place, name in enumerate(found.names):
        cover = larger.store.images[place]
        expected = marker.embed(cover, payload_of(place, marker), psnr=38.0)
        with Image.open(tmp_path / "grey" / name) as picture:
            kept = np.asarray(picture)
        assert np.array_equal(kept, expected.image)
        assert marker.extract(kept).payload == payload_of(place, marker)
        psnr = 10 * math.log10(255**2 / np.square(kept.astype(float) - cover).mean())
        assert columns["grey/psnr"][place] == pytest.approx(psnr, abs=1e-9)
        assert 38.0 <= columns["grey/floor_kept"][place] <= psnr
        assert columns["grey/bit_error"][place] == expected.certificate.bit_errors / 255
    assert columns["grey/message"].tolist() == [1, 1]
    assert columns["grey/flip message"][0] == 1  # which only registration finds
    assert columns["grey/gaussian(0.9) message"][0] == 0
    assert columns["grey/gaussian(0.9) bit_error"][0] == 0.5
    assert np.isnan(columns["grey/flip message"][1])
    summary = summarise(found, 38.0, refused=refused)
    assert (summary["evaluated_by"], summary["written"]["held"], summary["written"]["samples"]) == ("tool", 2, 3)
    assert summary["quality"]["grey"]["satisfied"]["held"] == 2
    assert summary["reading"]["grey"]["error_free"]["held"] == 2  # after correction, whatever was corrected
    assert summary["attacks"][1]["reading"]["error_free"]["held"] == 0
    assert summary["with_errors"] == []


def test_a_network_that_no_image_can_be_marked_with_is_given_up(
    larger: PictureData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.watermark.evaluation.shipped.GIVE_UP_AFTER", 1)
    found, refused = measure_shipped(Lattice(128, size=128, width=8), larger, floor=26.0)
    assert (len(found), len(refused)) == (0, 3)
    assert "not tried" in refused["1.png"]


@given(st.floats(1e-6, 0.5), st.integers(1, 500))
def test_capacity_is_that_of_the_symmetric_channel(error: float, bits: int) -> None:
    entropy = -error * math.log2(error) - (1 - error) * math.log2(1 - error)
    assert float(capacity(np.array(error), bits)) == pytest.approx(bits * (1 - entropy), abs=1e-9 * bits)
    assert float(capacity(np.array(1 - error), bits)) == 0


def test_the_table_of_images_has_every_number(data: PictureData, tmp_path: Path) -> None:
    found = measure(Plain(), data, attacks=parse_attacks("jpeg(75)"), attack_images=1)
    found.write(tmp_path / "images.csv")
    with (tmp_path / "images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(row["name"] for row in rows) == data.names
    assert [float(row["grey/psnr"]) for row in rows] == found.columns["grey/psnr"].tolist()
    assert [row["grey/jpeg(75) bit_error"] != "" for row in rows] == [True] + 8 * [False]
    again = Measured.read(tmp_path / "images.csv", found.bits)
    assert same(again, found)
    assert (again.names, again.patients, again.numbers.tolist()) == (
        found.names,
        found.patients,
        found.numbers.tolist(),
    )
