"""Nothing brings in the big libraries by itself, and without them the error says what to install."""

import subprocess
import sys

PROBE = """
import importlib, sys
import samplewise.integrations
from samplewise.errors import MissingPackageError

assert not {"lightning", "pytorch_lightning", "transformers", "accelerate"} & set(sys.modules)
sys.modules["lightning"] = sys.modules["transformers"] = None  # as if they were not installed
for name in ("lightning", "huggingface"):
    try:
        importlib.import_module(f"samplewise.integrations.{name}")
    except MissingPackageError as error:
        print(error)
"""


def test_the_libraries_wait_until_they_are_asked_for_and_may_be_missing() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "this integration needs lightning; pip install 'lightning>=2.5'",
        "this integration needs transformers; pip install 'transformers>=5.0' 'accelerate>=1.0'",
    ]
