from pathlib import Path

import numpy as np
import pytest
import torch

from idx_files import contents, described, idx, write_folder
from samplewise.errors import ConfigurationError, DataError
from studies.data import FASHION_MNIST, FILES, MNIST, OWN, PUBLISHED, ImageData, load_folder, published


@pytest.mark.parametrize("compressed", [False, True])
def test_a_folder_becomes_tensors(tmp_path: Path, compressed: bool) -> None:
    files = contents(train=12, test=6)
    data = load_folder(write_folder(tmp_path, files, compressed=compressed), described(files))
    images, labels = data.train.tensors
    assert images.shape == (12, 16)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    raw = np.frombuffer(files[FILES[0]][16:], np.uint8).reshape(12, 16)
    assert torch.equal((images * 255).round(), torch.from_numpy(raw.astype(np.float32)))
    assert float(images.max()) <= 1.0
    assert len(data.test) == 6
    assert (data.shape, data.pixels, data.classes, data.held_out) == ((4, 4), 16, 3, "test")


def test_the_same_data_compressed_again_is_accepted(tmp_path: Path) -> None:
    import gzip

    files = contents()
    folder = write_folder(tmp_path, files)
    for name, content in files.items():
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, compresslevel=1, mtime=7))
    assert len(load_folder(folder, described(files)).train) == 12


def test_a_changed_pixel_fails_the_md5(tmp_path: Path) -> None:
    files = contents()
    known = described(files)
    changed = bytearray(files[FILES[0]])
    changed[-1] ^= 1
    folder = write_folder(tmp_path, {**files, FILES[0]: bytes(changed)})
    with pytest.raises(DataError, match="train-images-idx3-ubyte: not the published file of small: expected md5"):
        load_folder(folder, known)
    assert len(load_folder(folder, OWN).train) == 12  # data of one's own has no md5 to fail


def test_missing_files_are_named_and_the_folder_too(tmp_path: Path) -> None:
    files = contents()
    folder = write_folder(tmp_path, {name: files[name] for name in FILES[:2]})
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte \(plain or \.gz\) not found"):
        load_folder(folder, described(files))
    with pytest.raises(DataError, match="no such folder"):
        load_folder(tmp_path / "elsewhere", described(files))


def test_images_and_labels_must_have_one_length(tmp_path: Path) -> None:
    files = {**contents(), FILES[1]: idx(np.zeros(11, np.uint8))}
    with pytest.raises(DataError, match="12 training images but 11 labels"):
        load_folder(write_folder(tmp_path, files), OWN)


def test_train_and_test_must_have_one_size(tmp_path: Path) -> None:
    files = {**contents(), FILES[2]: idx(np.zeros((6, 5, 4), np.uint8))}
    with pytest.raises(DataError, match="images of one size"):
        load_folder(write_folder(tmp_path, files), OWN)


def test_every_published_file_has_its_checksum() -> None:
    sums = [data.checksums[name] for data in (MNIST, FASHION_MNIST) for name in FILES]
    assert len(set(sums)) == 8
    assert all(len(value) == 32 and set(value) <= set("0123456789abcdef") for value in sums)
    with pytest.raises(ConfigurationError, match=r"expected one of mnist, fashion-mnist, own\. Did you mean 'mnist'"):
        published("minst")
    assert published("own") in PUBLISHED


def _data(samples: int = 10) -> ImageData:
    images = torch.arange(samples, dtype=torch.uint8).reshape(samples, 1, 1).expand(samples, 2, 2)
    return ImageData.from_bytes("x", (images, torch.arange(samples)), (images[:3], torch.arange(3)))


def test_validation_takes_training_samples_and_leaves_the_test_set_out() -> None:
    data = _data()
    split = data.with_validation(4, seed=1)
    kept, held = split.train.tensors[1].tolist(), split.test.tensors[1].tolist()
    assert len(held) == 4
    assert sorted(kept + held) == list(range(10))
    assert split.held_out == "validation"
    assert held == data.with_validation(4, seed=1).test.tensors[1].tolist()
    assert held != data.with_validation(4, seed=2).test.tensors[1].tolist()
    for samples in (0, 10):
        with pytest.raises(ConfigurationError, match="validation part of 1 to 9"):
            data.with_validation(samples)


def test_the_fingerprint_tells_data_apart() -> None:
    assert _data().fingerprint() == _data().fingerprint()
    assert _data().fingerprint() != _data(11).fingerprint()
    assert _data().fingerprint() != _data().with_validation(4).fingerprint()
