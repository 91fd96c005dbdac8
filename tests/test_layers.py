"""Imports inside the package point downward only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import samplewise

ROOT = Path(samplewise.__file__).parent

# Each module or folder of the package stands in one layer; it imports from its own and from those below.
LAYERS: list[set[str]] = [
    {"errors", "distributed", "provenance", "disk", "sharding"},
    {"measures", "masks", "unseen", "selection"},
    {"bounds", "constraints", "penalties", "schedules"},
    {"methods", "problem", "samples"},
    {"audit", "columns", "streamed", "certificate", "theory", "stopping", "forecast", "gradients"},
    {"training", "checkpoint", "history", "minimize"},
    {"data", "watermark", "report"},
    {"studies", "cli"},
]
PUBLIC = "samplewise"  # `import samplewise` itself: the names of layer 5 and below
EDGE = "integrations"  # imports what it likes; nobody imports it
PLACE = {name: float(layer) for layer, names in enumerate(LAYERS) for name in names} | {PUBLIC: 5.5, EDGE: 8.0}


def units(root: Path) -> dict[str, list[Path]]:
    """The source files of each module or folder right below the package."""
    found = {path.stem: [path] for path in root.glob("*.py") if path.stem != "__init__"}
    for folder in root.iterdir():
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else []
        if files:
            found[folder.name] = files
    return found


def imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and unit of each import from the package, wherever in the file it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ["samplewise", *path.relative_to(root).parts[:-1]]
            base = package[: len(package) - node.level + 1] + ([node.module] if node.module else [])
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "samplewise":
                known = len(parts) > 1 and (parts[1] in PLACE or parts[1] in units(root))
                yield node.lineno, parts[1] if known else PUBLIC


def violations(root: Path) -> list[str]:
    """Every import that points upward, in words."""
    found = []
    for unit, paths in units(root).items():
        if unit not in PLACE:
            found.append(f"{unit} stands in no layer: add it to LAYERS")
            continue
        for path in paths:
            for line, other in imported(path, root):
                place = PLACE.get(other)
                where = f"{path.relative_to(root)}:{line}"
                if place is None:
                    found.append(f"{where} imports {other}, which stands in no layer")
                elif other != unit and (place > PLACE[unit] or other == EDGE):
                    found.append(f"{where} imports {other}, which stands higher")
    return found


def test_imports_point_downward() -> None:
    assert violations(ROOT) == []


def test_no_unit_imports_itself_in_a_circle() -> None:
    edges = {
        unit: {other for path in paths for _, other in imported(path, ROOT)} - {unit, PUBLIC}
        for unit, paths in units(ROOT).items()
    }
    open_units = set(edges)
    while free := {unit for unit in open_units if not edges[unit] & open_units}:
        open_units -= free
    assert open_units == set()


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        (
            "methods/base.py",
            "from samplewise.training import fit",
            "methods/base.py:1 imports training, which stands higher",
        ),
        ("audit.py", "def f():\n    import samplewise.cli.app", "audit.py:2 imports cli, which stands higher"),
        ("penalties.py", "from samplewise import problem", "penalties.py:1 imports problem, which stands higher"),
        ("methods/base.py", "from ..training import fit", "methods/base.py:1 imports training, which stands higher"),
        ("samples.py", "from .studies import mnist", "samples.py:1 imports studies, which stands higher"),
        ("history.py", "import samplewise as sw", "history.py:1 imports samplewise, which stands higher"),
        (
            "cli/app.py",
            "from samplewise.integrations import x",
            "cli/app.py:1 imports integrations, which stands higher",
        ),
        ("new.py", "import torch", "new stands in no layer: add it to LAYERS"),
    ],
)
def test_the_test_sees_what_it_should(path: str, source: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(source)
    assert violations(tmp_path) == [complaint]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("history.py", "from samplewise.methods.base import Method"),
        ("methods/base.py", "from . import checks\nfrom ..errors import SamplewiseError"),
        ("studies/a.py", "import samplewise as sw\nfrom samplewise import fit, AtMost"),
        ("integrations/a.py", "import samplewise\nfrom samplewise.cli import main"),
    ],
)
def test_the_test_lets_good_imports_pass(path: str, source: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(source)
    assert violations(tmp_path) == []
