"""The packages outside of their checkout: what is released, and that it works where nothing else is."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLISHED = ("samplewise", "floormark")
PACKAGES = (*PUBLISHED, "studies")
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


@pytest.mark.parametrize("package", PUBLISHED)
def test_what_a_package_says_of_itself_leads_somewhere(package: str) -> None:
    """Links on a package index are absolute: to this version's files, all of which are there."""
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    repository, version = project["urls"]["Repository"], project["version"]
    page = (ROOT / package / project["readme"]).read_text()
    assert not re.findall(r"\]\((?!https://)[^)]*\)", page), "relative links are dead on an index"
    links = re.findall(rf"{repository}/([^\s)]+)", page)
    assert links
    assert all(link.startswith(f"blob/v{version}/") for link in links), "a release's page shows that release"
    links += [url.removeprefix(f"{repository}/") for url in project["urls"].values() if "/blob/" in url]
    assert all((ROOT / link.split("/", 2)[2].partition("#")[0]).is_file() for link in links)
    assert f"{package}-{version}-py3-none-any.whl" in page, "the line that installs a wheel names this version"


@pytest.mark.parametrize("package", PUBLISHED)
def test_only_what_the_workflow_runs_is_claimed(package: str) -> None:
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    (matrix,) = re.findall(r"python: (\[.*\])", (ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert claimed == json.loads(matrix)
    assert project["requires-python"] == f">={claimed[0]}"


def test_the_citation_is_of_this_version() -> None:
    cited = dict(re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.M))
    project = tomllib.loads((ROOT / "samplewise" / "pyproject.toml").read_text())["project"]
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", project["version"])
    assert (cited["license"], cited["repository-code"]) == (project["license"], project["urls"]["Repository"])


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as for an index, in an environment of its own: an sdist, and a wheel from that alone."""
    folder = tmp_path_factory.mktemp("built")
    python = environment(folder)
    install(python, "build", "twine", "readme_renderer[md]", cwd=folder)
    for package in PACKAGES:
        run(python, "-m", "build", "--outdir", folder / "dist", checkout / package, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheels(built: Path) -> dict[str, Path]:
    return {package: next((built / "dist").glob(f"{package}-*.whl")) for package in PACKAGES}


@pytest.mark.slow
def test_an_index_would_take_them_and_show_their_pages(built: Path) -> None:
    python = built / "venv" / "bin" / "python"
    found = [path for package in PUBLISHED for path in sorted((built / "dist").glob(f"{package}-*"))]
    assert len(found) == 2 * len(PUBLISHED)
    run(python, "-m", "twine", "check", "--strict", *found, cwd=built)
    for package in PUBLISHED:
        run(python, "-m", "readme_renderer", ROOT / package / "README.md", "-o", built / "page.html", cwd=built)
        html = (built / "page.html").read_text()
        links = re.findall(r'href="([^"]*)"', html)
        assert links
        assert all(link.startswith(("https://", "#")) for link in links)
        assert not re.findall(r"\[[^\]\n]+\]\[|\]\(|^#", re.sub(r"<pre.*?</pre>", "", html, flags=re.S), re.M)


@pytest.mark.slow
@pytest.mark.parametrize("package", PUBLISHED)
def test_an_sdist_holds_the_sources_and_no_tests(package: str, built: Path, wheels: dict[str, Path]) -> None:
    (sdist,) = (built / "dist").glob(f"{package}-*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    code = {f"src/{name}" for name in zipfile.ZipFile(wheels[package]).namelist() if ".dist-info/" not in name}
    assert code <= held
    assert {"LICENSE", "README.md", "pyproject.toml"} <= held
    assert ("MODEL_CARD.md" in held) == (package == "floormark")
    assert not [name for name in held if name.startswith("tests")], "half of them need the checkout"


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
