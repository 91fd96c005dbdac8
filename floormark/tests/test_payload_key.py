import os
import pickle
import traceback
from pathlib import Path

import numpy as np
import pytest

from floormark.errors import ConfigurationError
from floormark.payload import Key, read_key
from floormark.payload.message import mask, permutation

SECRET = "correct horse battery"


def test_a_key_comes_from_a_file_or_a_variable_and_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ending in ("", "\n", "\r\n"):
        (tmp_path / "key").write_bytes((SECRET + ending).encode())
        assert read_key(tmp_path / "key") == Key(SECRET.encode())
    monkeypatch.setenv("WATERMARK_KEY", SECRET)
    assert read_key(variable="WATERMARK_KEY") == Key(SECRET.encode())
    assert read_key() is None


def test_binary_keys_and_pipes_are_welcome(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(range(200, 232)))
    assert read_key(tmp_path / "key") == Key(bytes(range(200, 232)))
    reading, writing = os.pipe()
    os.write(writing, SECRET.encode())
    os.close(writing)
    assert read_key(f"/dev/fd/{reading}") == Key(SECRET.encode())
    os.close(reading)


def test_a_key_is_never_shown() -> None:
    key = Key(SECRET.encode())
    assert "horse" not in f"{key!r} {key} {key!s} {[key]}"


@pytest.mark.parametrize("secret", ["", "short secret", "x" * 5000])
def test_keys_that_cannot_be_right_are_refused_without_showing_them(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(secret)
    monkeypatch.setenv("WATERMARK_KEY", secret)
    for file, variable in ((tmp_path / "key", None), (None, "WATERMARK_KEY")):
        with pytest.raises(ConfigurationError, match=r"openssl rand -hex 32|more than 4096 bytes") as caught:
            read_key(file, variable=variable)
        text = "".join(traceback.format_exception(caught.value))
        assert not secret or secret not in text
        assert "\n" not in str(caught.value)
    if len(secret) < 16:
        with pytest.raises(ConfigurationError, match="at least 16 bytes"):
            Key(secret.encode())


def test_missing_keys_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATERMARK_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="WATERMARK_KEY is not set"):
        read_key(variable="WATERMARK_KEY")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="got a folder"):
        read_key(tmp_path)
    with pytest.raises(ConfigurationError, match="give one of the two"):
        read_key(tmp_path / "key", variable="WATERMARK_KEY")


def test_a_key_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(Key(SECRET.encode()))) == Key(SECRET.encode())  # for worker processes


def test_masks_are_balanced_and_orders_complete() -> None:
    keys = [Key(bytes([n] * 16)) for n in range(100)]
    ones = np.mean([mask(key, 200) for key in keys])
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(100 * 200)
    orders = [permutation(key, 200) for key in keys]
    assert all(sorted(order) == list(range(200)) for order in orders)
    assert len({tuple(order) for order in orders}) == 100
