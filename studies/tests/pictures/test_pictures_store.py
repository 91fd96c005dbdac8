import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from picture_folders import chest_names, noise, save, write_chest, write_pictures
from samplewise.errors import CheckpointError, DataError
from samplewise.samples import BatchedDataset, in_order
from studies.pictures import PARTS, PATHOLOGIES, Seen, Store, prepare


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return prepare(write_chest(tmp_path / "data"), tmp_path / "store", size=8)


def test_a_part_gives_whole_batches(store: Store) -> None:
    data = store.select("train")
    assert isinstance(data, BatchedDataset)
    images, numbers = data.take(torch.tensor([2, 0, 2]))
    assert (images.shape, images.dtype, numbers.dtype) == ((3, 1, 8, 8), torch.float32, torch.int64)
    assert [store.names[number] for number in numbers] == [data.names[2], data.names[0], data.names[2]]
    place = list(chest_names()).index(data.names[2])  # pictures are noise, seeded by their place
    assert torch.equal((images[0, 0] * 255).round().to(torch.uint8), torch.from_numpy(noise(place)))
    assert torch.equal(images[0], images[2])


def test_single_samples_are_those_of_the_batches(store: Store) -> None:
    data = store.select("test")
    images, numbers = data.take(torch.arange(len(data)))
    for place in range(len(data)):
        image, number = data[place]
        assert torch.equal(image, images[place])
        assert number == numbers[place]
    with pytest.raises(IndexError):
        data[len(data)]
    loaded = [batch for batch, _ in in_order(DataLoader(data, batch_size=3), batch_size=3)]
    assert torch.equal(torch.cat([batch[0] for batch in loaded]), images)


def test_parts_hold_every_picture_once_with_its_patient_and_labels(store: Store) -> None:
    data = [store.select(part) for part in PARTS]
    assert sorted(int(row) for part in data for row in part.rows) == list(range(24))
    for part in data:
        for name, patient, labels in zip(part.names, part.patients, part.labels, strict=True):
            assert name.startswith(patient)
            shown = "|".join(PATHOLOGIES[column] for column in np.flatnonzero(labels)) or "No Finding"
            assert shown == chest_names()[name]
    patients = [set(part.patients) for part in data]
    assert sum(map(len, patients)) == len(set().union(*patients)) == 12


def test_pictures_without_labels_have_none(tmp_path: Path) -> None:
    store = prepare(write_pictures(tmp_path / "data", ["a.png", "b.png"]), tmp_path / "store", size=4)
    with pytest.raises(DataError, match="no labels"):
        store.select().labels  # noqa: B018 - which is read
    with pytest.raises(DataError, match="has no split"):
        store.select("train")


def test_another_process_gets_the_place_and_not_the_pixels(tmp_path: Path) -> None:
    Image.fromarray(noise(0, 64, 64)).resize((512, 512)).save(tmp_path / "a.png")
    data = prepare(tmp_path, tmp_path / "store", size=512).select()
    sent = pickle.dumps(data)
    assert len(sent) < 10_000 < data.store.images.nbytes
    assert torch.equal(pickle.loads(sent)[0][0], data[0][0])


def test_pixels_cannot_be_changed_through_the_store(store: Store) -> None:
    with pytest.raises(ValueError, match="read-only"):
        store.images[0, 0, 0] = 1
    store.select().take(torch.tensor([0]))[0].zero_()
    assert np.array_equal(store.images[0], noise(0))


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda index: {k: v for k, v in index.items() if k != key}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda index: {**index, "format": "samplewise-pictures-0"}, "version"),
        (lambda index: [index], "version"),
        (without("patients"), r"patients"),
        (lambda index: {**index, "patients": index["patients"][:-1]}, "belong together"),
        (lambda index: {**index, "findings": []}, "belong together"),
        (lambda index: {**index, "names": index["names"][:1] * 24}, "belong together"),
        (lambda index: {**index, "findings": ["Flu"] * 24}, r"unknown labels \['Flu'\]"),
        (lambda index: {**index, "size": "8"}, r"size, got '8'"),
        (lambda index: {**index, "size": 0}, "belong together"),
        (lambda index: {**index, "size": 9}, r"24 x 9 x 9"),
    ],
)
def test_a_damaged_or_foreign_index_is_refused(store: Store, change: Any, complaint: str) -> None:
    path = store.folder / "index.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(CheckpointError, match=complaint):
        Store.open(store.folder)


def test_torn_files_are_refused(store: Store) -> None:
    images = store.folder / "images.u8"
    with images.open("ab") as file:
        file.truncate(images.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="1535"):
        Store.open(store.folder)
    images.unlink()
    with pytest.raises(CheckpointError, match=r"images\.u8: .* No such file"):
        Store.open(store.folder)
    index = store.folder / "index.json"
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"index\.json: cannot be read"):
        Store.open(store.folder)


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(DataError, match=r"index.json is missing"):
            Store.open(folder)


def test_pictures_that_were_seen_are_known_by_content_and_by_patient(store: Store, tmp_path: Path) -> None:
    seen = Seen.of(store.select("train"))
    assert seen.among(store.select("train")).all()
    assert not seen.among(store.select("test")).any()
    trained, tested = store.split.train[0], store.split.test[0]
    other = tmp_path / "other"
    pixels = {name: store.images[store.names.index(name)] for name in (trained, tested)}
    save(other / "renamed.bmp", pixels[trained])
    save(other / "sub" / f"{trained[:8]}_009.png", noise(900))  # another picture of the same patient
    save(other / "00009999_000.png", pixels[trained])  # under the name of another patient, who has a second picture
    save(other / "00009999_001.png", noise(901))
    save(other / "new.png", pixels[tested])
    data = prepare(other, tmp_path / "others", size=8).select()
    told = dict(zip(data.names, seen.among(data).tolist(), strict=True))
    assert {name for name, there in told.items() if not there} == {"new.png"}


def test_a_name_that_two_folders_share_is_no_patient(tmp_path: Path) -> None:
    mine, others = (save(tmp_path / folder / "1.png", noise(seed)).parent for seed, folder in enumerate("ab"))
    seen = Seen.of(prepare(mine, tmp_path / "mine", size=8).select())
    assert not seen.among(prepare(others, tmp_path / "others", size=8).select()).any()
    assert (
        (seen | Seen.of(Store.open(tmp_path / "others").select())).among(Store.open(tmp_path / "others").select()).all()
    )
