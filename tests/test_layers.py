"""Imports point downward only, inside each package; and of the packages only the studies know the others."""

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Each module or folder of a package stands in one layer; it imports from its own and from those below.
LAYERS: dict[str, list[set[str]]] = {
    "samplewise": [
        {"errors"},
        {"storage"},
        {"measures", "printed"},
        {"constraints", "penalties", "schedules"},
        {"problem", "samples", "methods"},
        {"audits", "optimality", "stopping"},
        {"history", "training", "minimization"},
        {"report"},
        {"cli"},
    ],
    "floormark": [
        {"errors", "filters", "threads"},
        {"disk", "patches", "periods", "processes"},
        {"imageio", "network", "payload"},
        {"display_range", "registration"},
        {"options", "prepared"},
        {"certificate", "content_binding", "parts", "strength"},
        {"fidelity", "tiling"},
        {"api", "signing"},
        {"content_credentials", "register"},
        {"files", "verify"},
        {"node", "serve"},
        {"cli"},
    ],
    "studies": [
        {"data", "drawing", "options", "pictures", "records", "theory"},
        {"progress"},
        {"watermark"},
        {"chest", "compression", "mnist"},
        {"demo"},
        {"commands"},
    ],
}
EDGE = "integrations"  # imports what it likes; nobody imports it
FORBIDDEN = {
    "samplewise": {"floormark", "studies"},
    "floormark": {"samplewise", "studies", "kornia", "matplotlib", "torchmetrics", "lightning", "lightning_fabric"},
    "studies": set[str](),
}
PUBLIC = {
    "samplewise": {"", "cli", "errors", "measures", "problem", "report", "samples", "storage", "training"},
    "floormark": None,  # every module, its names without an underscore
}
"""What the studies import from: the package itself and these modules of it."""


def imports(path: Path, source: Path) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of each import, wherever in the file it stands; the name is empty for a whole module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = list(path.relative_to(source).parts[: -node.level]) if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def unit(path: Path, source: Path) -> str:
    """The module or folder right below the package that a file belongs to; empty for the package's own file."""
    inner = path.relative_to(source).parts[1]
    return "" if inner in ("__init__.py", "__main__.py") else inner.removesuffix(".py")


def modules(package: str, source: Path) -> Iterator[Path]:
    yield from sorted((source / package).rglob("*.py"))


def layer_violations(package: str, source: Path) -> list[str]:
    """Every import inside a package that points upward, in words."""
    place = {name: layer for layer, names in enumerate(LAYERS[package]) for name in names}
    place |= {EDGE: len(place)}
    found = []
    for path in modules(package, source):
        own, where = unit(path, source), path.relative_to(source / package)
        if not own:
            continue
        if own not in place:
            found.append(f"{own} stands in no layer: add it to LAYERS")
            continue
        for line, module, name in imports(path, source):
            parts = [*module.split("."), name]
            if parts[0] != package or parts[1:] == [""]:
                continue
            other = parts[1] if parts[1] in place else ""  # a public name of the package itself
            if own != other and (other == EDGE or not other or place[other] > place[own]):
                found.append(f"{where}:{line} imports {other or package}, which stands higher")
    return found


def package_violations(package: str, source: Path) -> list[str]:
    """Every import of what a package must not know, in words."""
    found = []
    for path in modules(package, source):
        for line, module, name in imports(path, source):
            top, _, inner = module.partition(".")
            where = f"{path.relative_to(source)}:{line}"
            if top in FORBIDDEN[package]:
                found.append(f"{where} imports {top}")
            elif package == "studies" and top in PUBLIC and not _public(top, inner, name):
                found.append(f"{where} imports {name} of {module}, which is not public")
    return found


def _public(package: str, inner: str, name: str) -> bool:
    allowed = PUBLIC[package]
    if not inner and importlib.util.find_spec(f"{package}.{name}"):  # a module by its name
        inner, name = name, ""
    if allowed is not None and inner not in allowed:
        return False
    module = importlib.import_module(f"{package}.{inner}".rstrip("."))
    offered = getattr(module, "__all__", None)
    return not name or (name in offered if offered is not None else not name.startswith("_"))


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_downward(package: str) -> None:
    assert layer_violations(package, ROOT / package / "src") == []


@pytest.mark.parametrize("package", LAYERS)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    assert package_violations(package, ROOT / package / "src") == []


@pytest.mark.parametrize("package", LAYERS)
def test_no_unit_imports_itself_in_a_circle(package: str) -> None:
    source = ROOT / package / "src"
    edges: dict[str, set[str]] = {}
    for path in modules(package, source):
        own = unit(path, source)
        used = {module.split(".")[1] for _, module, _ in imports(path, source) if module.startswith(f"{package}.")}
        edges.setdefault(own, set()).update(used - {own})
    open_units = set(edges)
    while free := {unit for unit in open_units if not edges[unit] & open_units}:
        open_units -= free
    assert open_units == set()


def write(folder: Path, path: str, source: str) -> Path:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(source)
    return folder


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("methods/base.py", "from samplewise.training import fit", "imports training"),
        ("audits/audit.py", "def f():\n    import samplewise.cli.app", "imports cli"),
        ("methods/base.py", "from ..training import fit", "imports training"),
        ("samples.py", "from .report import page", "imports report"),
        ("history.py", "from samplewise import fit", "imports samplewise"),
        ("cli/app.py", "from samplewise.integrations import x", "imports integrations"),
        ("new.py", "import torch", "new stands in no layer"),
    ],
)
def test_an_import_upward_is_found(path: str, source: str, complaint: str, tmp_path: Path) -> None:
    (found,) = layer_violations("samplewise", write(tmp_path, f"samplewise/{path}", source))
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("history.py", "from samplewise.methods.base import Method"),
        ("methods/base.py", "from . import coefficients\nfrom ..errors import SamplewiseError"),
        ("integrations/a.py", "from samplewise.cli import main"),
        ("storage/disk.py", "from samplewise.storage import distributed"),
    ],
)
def test_an_import_downward_is_fine(path: str, source: str, tmp_path: Path) -> None:
    assert layer_violations("samplewise", write(tmp_path, f"samplewise/{path}", source)) == []


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("samplewise/a.py", "import floormark.api", ["samplewise/a.py:1 imports floormark"]),
        ("floormark/a.py", "def f():\n    from torchmetrics import image", ["floormark/a.py:2 imports torchmetrics"]),
        ("floormark/a.py", "import torch, pydicom", []),
        ("studies/a.py", "import samplewise as sw\nfrom samplewise import fit\nfrom floormark import Watermarker", []),
        ("studies/a.py", "from samplewise.errors import DataError", []),
        ("studies/a.py", "from samplewise.methods.base import Method", ["imports Method of samplewise.methods.base"]),
        ("studies/a.py", "from samplewise.cli import _moved", ["imports _moved of samplewise.cli"]),
    ],
)
def test_what_a_package_must_not_import_is_found(path: str, source: str, found: list[str], tmp_path: Path) -> None:
    seen = package_violations(path.partition("/")[0], write(tmp_path, path, source))
    assert len(seen) == len(found)
    assert all(part in text for part, text in zip(found, seen, strict=True))
