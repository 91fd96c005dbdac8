"""Each recipe of the gallery runs, is short, shows what its page says, and draws the picture that is shown."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "gallery"
PICTURES = ROOT / "docs" / "images" / "gallery"
RECIPES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
# What must hold when a recipe has run, by its own names.
CLAIMS = {
    "equality": "stats.satisfied > 0.95",
    "error_bounds": "summary['error'].satisfied == 1",
    "infeasible": "solution.audits['train'].satisfied >= 0.95 and set(worst) == set(range(5))",
    "no_negative_flips": "flips['new, bounded'] < flips['new']",
    "one_sided": "summary['late'].satisfied > 0.99",
    "per_patch_floor": "held['floor'] == 1 > 0.9 > held['weight']",
    "per_token": "beyond['bounded'] == 0 < beyond['a weight on the mean loss']",
    "processes": "runs[0][-1] > 0.5 and max(abs(a - b) for a, b in zip(*runs)) < 0.02",
    "several": "all(stats[key].violated == 0 for key in ('error', 'rise', 'value'))",
    "teacher": "beyond['bounded'] == 0 < beyond['a weight on the mean loss']",
}


def test_every_recipe_has_a_claim_a_picture_and_a_place_on_the_page() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    included = re.findall(r'^--8<-- "examples/gallery/(\w+)\.py"$', page, flags=re.MULTILINE)
    shown = re.findall(r"\(images/gallery/(\w+)\.png\)", page)
    assert included == shown
    assert sorted(included) == sorted(RECIPES) == sorted(CLAIMS) == sorted(path.stem for path in PICTURES.iterdir())
    assert all(path.stat().st_size < 150_000 for path in PICTURES.iterdir())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short(name: str) -> None:
    tree = ast.parse(RECIPES[name].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    lines = RECIPES[name].read_text(encoding="utf-8").splitlines()
    code = [line for line in lines[1:] if line.strip() and not re.match(r"(import|from) ", line)]
    assert len(code) <= 25, "beside what it imports"


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_and_shows_what_it_says(name: str, tmp_path: Path) -> None:
    """In a process of its own, as a person would run it; what is claimed is read at its end."""
    checked = tmp_path / RECIPES[name].name
    checked.write_text(f"{RECIPES[name].read_text()}\nif __name__ == '__main__':\n    assert {CLAIMS[name]}\n")
    environment = os.environ | {"MATPLOTLIBRC": str(FOLDER), "MPLBACKEND": "agg"}
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    run = subprocess.run([sys.executable, checked], **options, check=False)
    assert run.returncode == 0, run.stderr
    with Image.open(tmp_path / f"{name}.png") as drawn, Image.open(PICTURES / f"{name}.png") as shown:
        assert drawn.size == shown.size
