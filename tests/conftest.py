"""One thread, since tests run beside other work, and no deadlines, since machines are noisy."""

import multiprocessing
import os
from multiprocessing.context import BaseContext

import hypothesis
import pytest
import torch

import forked  # noqa: F401 - says what is imported before the forks

torch.set_num_threads(1)
os.fsync = lambda fd: None  # what a power failure leaves cannot be tested, and a disk takes its time
hypothesis.settings.register_profile("samplewise", deadline=None, print_blob=True)
hypothesis.settings.load_profile("samplewise")


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a command works with are forked from one that has imported what they need, as in ``forked``."""
    plain = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return plain("forkserver" if method == "spawn" else method)

    monkeypatch.setattr(multiprocessing, "get_context", get_context)
