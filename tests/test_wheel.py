"""The packages outside of their checkout: what a wheel holds, and that it works where nothing else is."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("samplewise", "floormark", "studies")
LIBRARY = """
import torch, samplewise as sw
method = sw.SequentialPenalty([sw.AtMost("error", 1.0)], schedule=sw.Geometric(2.0, growth=1.5))
loss = method(torch.ones(4), error=torch.full((4,), 3.0))
print(float(loss), method.step()["error"].satisfied, method.tau)
"""
TOOL = """
import numpy as np
from PIL import Image
from floormark import Watermarker
image = (60 + np.add.outer(np.arange(256), np.arange(256)) // 4).astype(np.uint8)
print(Watermarker.load().embed(image, "patient 4711", psnr=40).certificate.fidelity.psnr >= 40)
Image.fromarray(image).save("image.png")
"""


def run(*call: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([*map(str, call)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that what an earlier build left behind cannot get into a wheel."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "tests")
        shutil.copytree(ROOT / package, copy / package, ignore=unwanted)
    return copy


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_holds_every_file_of_its_package(package: str, checkout: Path, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--wheel-dir", tmp_path, checkout / package, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / package / "src" / package
    files = {path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert held == {path.relative_to(source.parent).as_posix() for path in files}
    networks = {name for name in held if name.endswith((".safetensors", ".onnx"))}
    shipped = {f"floormark/lattice{ending}" for ending in (".safetensors", "-encoder.onnx", "-decoder.onnx")}
    assert networks == (shipped if package == "floormark" else set())


@pytest.fixture(scope="module")
def wheels(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Built as for an index, in an environment of its own."""
    folder = tmp_path_factory.mktemp("wheels")
    python = environment(folder)
    install(python, "build", cwd=folder)
    for package in PACKAGES:
        run(python, "-m", "build", "--wheel", "--outdir", folder, checkout / package, cwd=folder)
    return {package: next(folder.glob(f"{package}-*.whl")) for package in PACKAGES}


def environment(folder: Path) -> Path:
    venv.create(folder / "venv", with_pip=True, system_site_packages=False)
    return folder / "venv" / "bin" / "python"


def install(python: Path, *wanted: str | Path, cwd: Path) -> None:
    quick = ("--quiet", "--disable-pip-version-check", "--no-compile")  # what is used is compiled when it is imported
    pip = (python, "-m", "pip", "install", *quick, "-c", ROOT / "constraints.txt")
    run(*pip, *wanted, cwd=cwd)


@pytest.mark.slow
def test_the_library_works_alone(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path)
    install(python, wheels["samplewise"], cwd=tmp_path)
    assert run(python, "-c", LIBRARY, cwd=tmp_path).split() == ["5.0", "0.0", "3.0"]
    assert "torch" in run(python.with_name("samplewise"), "env", cwd=tmp_path)


@pytest.mark.slow
def test_the_tool_works_alone(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path)
    install(python, wheels["floormark"], cwd=tmp_path)
    assert run(python, "-c", TOOL, cwd=tmp_path).strip() == "True"
    command = python.with_name("floormark")
    run(command, "embed", "image.png", "marked.png", "--text", "patient 4711", "--psnr", "40", cwd=tmp_path)
    assert "patient 4711" in run(command, "extract", "marked.png", cwd=tmp_path)
    there = {line.partition("==")[0] for line in run(python, "-m", "pip", "freeze", cwd=tmp_path).split()}
    assert not {"samplewise", "lightning-fabric", "kornia", "matplotlib", "torchmetrics"} & there


@pytest.mark.slow
def test_the_studies_run_the_demo(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path)
    install(python, f"{wheels['samplewise']}[report]", wheels["floormark"], wheels["studies"], cwd=tmp_path)
    where = run(python, "-c", "import studies; print(studies.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
    run(python.with_name("studies"), "demo", "--out", "demo", cwd=tmp_path)
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    run(python.with_name("samplewise"), "demo", "--help", cwd=tmp_path)  # as it was called in version 0.2
