"""Every example runs as it stands and keeps what it promises."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from forked import Forked

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
SHARE = re.compile(r"^(train|test): ([\d.]+)% of the \w+ within the bound before, ([\d.]+)% after$", re.MULTILINE)


def run(script: Path, folder: Path) -> None:
    """As ``python script`` in an empty folder."""
    folder.mkdir()
    os.chdir(folder)
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")


SLOW = {"low_rank_adapters"}  # imports what the others do without


@pytest.mark.parametrize(
    "script", [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in SLOW), id=path.stem) for path in SCRIPTS]
)
def test_an_example_reaches_its_bound(script: Path, tmp_path: Path) -> None:
    code, out, err = Forked(run, script, tmp_path / "empty", told=tmp_path).finish()
    assert code == 0, err
    shares = {split: (float(before), float(after)) for split, before, after in SHARE.findall(out)}
    assert shares["train"][0] < 50 < 99 < shares["train"][1]
    assert shares["test"][0] < 50 < 90 < shares["test"][1]
    assert list((tmp_path / "empty").iterdir()) == [], "it leaves nothing behind"


def test_the_readme_lists_the_examples_and_they_are_short() -> None:
    listed = re.findall(r"^python examples/(\w+\.py)$", (EXAMPLES / "README.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == [script.name for script in SCRIPTS]
    assert all(len(script.read_text().splitlines()) < 80 for script in SCRIPTS)
