import math
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from samplewise.errors import CheckpointError
from samplewise.storage.checkpoint import Checkpoints, load_state, save_state

leaves = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)
states = st.dictionaries(
    st.text(max_size=5),
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(), inner, max_size=3)),
    max_size=4,
)


@given(states)
def test_plain_values_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("state") / "a.safetensors"
    save_state(path, state)
    assert load_state(path) == state


def test_tensors_come_back_bit_by_bit(tmp_path: Path) -> None:
    shared = torch.randn(3)
    state = {
        "weights": {"a": shared, "tied": shared, "half": torch.randn(2, 2).bfloat16(), "empty": torch.zeros(0, 4)},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}, 7: [torch.arange(5), math.inf]}},
        "scalar": torch.tensor(True),
    }
    save_state(tmp_path / "a.safetensors", state)
    found = load_state(tmp_path / "a.safetensors")
    assert found["optimizer"]["state"][7][1] == math.inf
    torch.testing.assert_close(found, state, rtol=0, atol=0)


def test_names_that_hold_a_slash_or_look_alike_lose_no_tensor(tmp_path: Path) -> None:
    state = {
        "a/b": {"c": torch.tensor(1.0)},
        "a": {"b/c": torch.tensor(2.0), "b": {"c": torch.tensor(3.0), "c'": torch.tensor(4.0)}},
        "optimizer": {0: torch.tensor(5.0), "0": torch.tensor(6.0)},
        "": {"": torch.tensor(7.0), "/": torch.tensor(8.0)},
        "/": torch.tensor(9.0),
    }
    save_state(tmp_path / "a.safetensors", state)
    torch.testing.assert_close(load_state(tmp_path / "a.safetensors"), state, rtol=0, atol=0)


names = st.text("/'a0", max_size=3) | st.integers(0, 2)
trees = st.dictionaries(
    st.text("/'a0", max_size=3),
    st.recursive(
        st.floats(-10, 10, width=32).map(torch.tensor), lambda inner: st.dictionaries(names, inner, max_size=4)
    ),
    max_size=4,
)


@settings(max_examples=40)
@given(trees)
def test_tensors_of_whatever_names_come_back(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("state") / "a.safetensors"
    save_state(path, state)
    torch.testing.assert_close(load_state(path), state, rtol=0, atol=0)


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="optimizer/hook"):
        save_state(tmp_path / "a.safetensors", {"optimizer": {"hook": lambda: None}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "header", "flip", "number", "empty", "random"])
def test_a_torn_file_is_refused_and_the_one_before_it_used(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        checkpoints.save(step, {"step": step, "weights": torch.full((100,), float(step))})
    newest = max(tmp_path.glob("step-*"))
    content = bytearray(newest.read_bytes())
    if damage == "cut":
        content = content[:-7]
    elif damage == "header":
        content = content[:20]
    elif damage == "flip":
        content[-5] ^= 1
    elif damage == "number":  # a plain value in the header, which is still valid JSON
        content = content.replace(b'[\\"step\\", 2]', b'[\\"step\\", 7]')
        assert content != newest.read_bytes()
    elif damage == "empty":
        content = bytearray()
    else:
        content = bytearray(b"not a checkpoint at all, but long enough to look like one")
    newest.write_bytes(content)
    with pytest.raises(CheckpointError):
        load_state(newest)
    with pytest.warns(UserWarning, match="using the one before it"):
        state = checkpoints.latest()
    assert state is not None
    assert state["step"] == 1
    assert checkpoints.read.name == "step-000000000001.safetensors"


def test_no_readable_checkpoint_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"step": 1})
    next(tmp_path.glob("step-*")).write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(CheckpointError, match="none of the 1 checkpoints"),
    ):
        checkpoints.latest()


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    for step in (9, 10, 11):
        checkpoints.save(step, {"step": step})
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000000010.safetensors",
        "step-000000000011.safetensors",
    ]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_state(tmp_path / "a.safetensors")


def test_a_full_disk_is_said_and_what_was_saved_stays(tmp_path: Path) -> None:
    script = """
import sys, torch
from pathlib import Path
from samplewise.storage.checkpoint import Checkpoints
from samplewise.errors import OutputError
checkpoints = Checkpoints(Path(sys.argv[1]))
checkpoints.save(1, {"a": torch.zeros(10)})
try:
    checkpoints.save(2, {"a": torch.zeros(1_000_000)})
except OutputError as error:
    print(error)
"""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that the write fails instead of the process

    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    assert "cannot write" in found.stdout
    assert "File too large" in found.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.safetensors"]
    assert Checkpoints(tmp_path).latest() is not None
