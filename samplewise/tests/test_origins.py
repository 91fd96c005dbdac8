import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from samplewise.storage import origins as original

SOURCE = Path(original.__file__)
PRINTS = """import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("copied", {module!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(module.command()))
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean repository with a copy of the module in its place."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # a hook sets them, and then they name this repository
    top = tmp_path / "checkout"
    for name in ("src/samplewise", "benchmarks", "results", "docs", "tests"):
        (top / name).mkdir(parents=True)
        (top / name / "file.txt").write_text("first\n")
    shutil.copy(SOURCE, top / "src" / "samplewise" / "provenance.py")
    (top / ".gitignore").write_text(".venv/\n__pycache__/\n")
    git(top, "init", "--quiet")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "--message", "first")
    return top


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("copied", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commit(top: Path) -> str | None:
    found: str | None = load(top / "src" / "samplewise" / "provenance.py").commit()
    return found


def test_a_clean_checkout_gives_its_commit(checkout: Path) -> None:
    assert commit(checkout) == git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "name", ["src/samplewise/file.txt", "benchmarks/file.txt", "tests/file.txt", "src/new.py", "new.py", "results.py"]
)
def test_a_changed_or_unknown_file_anywhere_makes_it_dirty(checkout: Path, name: str) -> None:
    (checkout / name).write_text("second\n")
    assert commit(checkout) == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_unknown_files_count_whatever_the_users_settings(checkout: Path) -> None:
    git(checkout, "config", "status.showUntrackedFiles", "no")
    (checkout / "benchmarks" / "new.py").write_text("")
    assert str(commit(checkout)).endswith("-dirty")


def test_a_staged_or_deleted_file_makes_it_dirty(checkout: Path) -> None:
    git(checkout, "rm", "--quiet", "benchmarks/file.txt")
    assert str(commit(checkout)).endswith("-dirty")


def test_results_docs_and_ignored_files_do_not_make_it_dirty(checkout: Path) -> None:
    for name in ("results/file.txt", "docs/file.txt", "results/benchmarks/new.json", "docs/new.md", ".venv/new.py"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("second\n")
    assert commit(checkout) == git(checkout, "rev-parse", "HEAD")


def test_only_results_and_docs_at_the_top_are_left_out(checkout: Path) -> None:
    (checkout / "src" / "results").mkdir()
    (checkout / "src" / "results" / "new.py").write_text("")
    assert str(commit(checkout)).endswith("-dirty")


def test_a_package_installed_inside_a_foreign_checkout_has_no_commit(checkout: Path) -> None:
    installed = checkout / ".venv" / "site-packages" / "samplewise"
    installed.mkdir(parents=True)
    shutil.copy(SOURCE, installed / "provenance.py")
    assert load(installed / "provenance.py").commit() is None


def test_no_commit_outside_a_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    outside = checkout.parent / "outside"
    outside.mkdir()
    shutil.copy(SOURCE, outside / "provenance.py")
    assert load(outside / "provenance.py").commit() is None


@pytest.fixture
def printed(checkout: Path) -> Callable[..., str]:
    """Runs Python in a folder and returns what ``command()`` says there."""

    def run(*arguments: str, folder: Path = checkout) -> str:
        found = subprocess.run(
            [sys.executable, *arguments], cwd=folder, check=True, capture_output=True, text=True
        ).stdout
        return str(json.loads(found))

    return run


def script(checkout: Path, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PRINTS.format(module=str(checkout / "src" / "samplewise" / "provenance.py")))
    return file


def test_a_script_is_named_from_the_top_of_the_checkout(checkout: Path, printed: Callable[..., str]) -> None:
    file = script(checkout, checkout / "benchmarks" / "step.py")
    expected = "python benchmarks/step.py --x 'two words'"
    assert printed("benchmarks/step.py", "--x", "two words") == expected
    assert printed("step.py", "--x", "two words", folder=file.parent) == expected
    assert printed(str(file), "--x", "two words", folder=checkout.parent) == expected


def test_a_script_elsewhere_is_given_by_its_name(checkout: Path, printed: Callable[..., str]) -> None:
    file = script(checkout, checkout.parent / "elsewhere" / "study.py")
    assert printed(str(file), "3") == "python study.py 3"


def test_a_console_script_is_given_by_its_name(checkout: Path, printed: Callable[..., str]) -> None:
    file = script(checkout, checkout / ".venv" / "bin" / "samplewise")
    assert printed(str(file), "demo", "--out", "demo") == "samplewise demo --out demo"


def test_a_module_is_given_as_one_would_run_it(checkout: Path, printed: Callable[..., str]) -> None:
    script(checkout, checkout / "package" / "__main__.py")
    script(checkout, checkout / "package" / "study.py")
    assert printed("-m", "package", "--x") == "python -m package --x"
    assert printed("-m", "package.study", "--x") == "python -m package.study --x"


def test_code_on_the_command_line_is_not_repeated(checkout: Path, printed: Callable[..., str]) -> None:
    code = PRINTS.format(module=str(checkout / "src" / "samplewise" / "provenance.py"))
    assert printed("-c", code, "3") == "python -c 3"


class Plain:
    """An object as users write them, whose repr says where it lies."""

    def __init__(self, size: float, *more: object) -> None:
        self.size, self.more, self.own = size, more, self

    def twice(self) -> float:
        return 2 * self.size


def times(factor: float) -> Callable[[float], float]:
    return lambda value: factor * value


@pytest.mark.parametrize(
    "make",
    [
        Plain,
        lambda size: [Plain(1, {"size": Plain(size)})],
        times,
        lambda size: Plain(3, times(size), Plain(1).twice),
        lambda size: functools.partial(times(2.0), size),
    ],
)
def test_an_object_is_described_by_type_and_state_and_not_by_its_place(make: Callable[[float], object]) -> None:
    first, same, other = (make(size) for size in (1.5, 1.5, 2.5))
    assert original.described(first) == original.described(same)
    assert original.described(first) != original.described(other)
    assert " at 0x" not in original.described(first)


@pytest.mark.parametrize("value", [[1, "a", None], (2.5,), (), {"a": [True]}, "text"])
def test_what_has_a_repr_of_its_own_is_described_by_it(value: object) -> None:
    assert original.described(value) == repr(value)


def test_the_order_of_a_set_does_not_matter() -> None:
    assert original.described({"b", "a", "c"}) == original.described({"c", "b", "a"}) == "('a', 'b', 'c')"
