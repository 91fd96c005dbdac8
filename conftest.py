"""One thread, since tests run beside other work; no deadlines, since machines are noisy; the same numbers each time.

What hypothesis draws is fixed too, so that a failure comes again; ``pytest --hypothesis-profile=explore`` draws anew.
"""

import gc
import multiprocessing
import os
import random
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

import forked  # noqa: F401 - says what is imported before the forks

gc.disable()  # while a million objects are imported, which stay
torch.set_num_threads(1)
os.fsync = lambda fd: None  # what a power failure leaves cannot be tested, and a disk takes its time
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.register_profile("samplewise", deadline=None, derandomize=True)
hypothesis.settings.load_profile("samplewise")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is there before the first test is not looked through again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each test begins with the same random numbers, whichever ran before it in this process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a command works with are forked from one that has imported what they need, as in ``forked``."""
    plain = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return plain("forkserver" if method == "spawn" else method)

    monkeypatch.setattr(multiprocessing, "get_context", get_context)


@pytest.fixture
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out and drawn once, but not turned into pixels: each kind has a test of its files elsewhere."""
    from matplotlib.figure import Figure

    def savefig(self: Figure, file: Path, **options: Any) -> None:
        if options["format"] == "png":
            self.draw_without_rendering()
        file.write_text("drawn")

    monkeypatch.setattr(Figure, "savefig", savefig)
