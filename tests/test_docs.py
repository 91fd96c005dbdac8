"""The README and the documentation: every Python block runs, links lead somewhere, and the site builds."""

import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import typer

import floormark.cli.app
import samplewise as sw
import samplewise.cli.app
import studies.commands.app

ROOT = Path(__file__).parent.parent
PACKAGES = ("samplewise", "floormark", "studies")
READMES = [path for path in (ROOT / "README.md", *(ROOT / each / "README.md" for each in PACKAGES)) if path.exists()]
CARD = ROOT / "floormark" / "MODEL_CARD.md"
PAGES = [*READMES, CARD, *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = {
    "samplewise": typer.main.get_command(samplewise.cli.app.app),
    "studies": typer.main.get_command(studies.commands.app.app),
}
BLOCK = re.compile(r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```", flags=re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```bash\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r'^--8<-- "(?P<file>[^":]+)(?::[\d:]+)?"$', flags=re.MULTILINE)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_the_code_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom, in one namespace and an empty folder. Examples that are included have a test of their own."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text()
    for block in BLOCK.finditer(text):
        if not INCLUDED.match(block["code"]):
            line = text[: block.start("code")].count("\n")
            exec(compile("\n" * line + textwrap.dedent(block["code"]), str(page), "exec"), namespace)


@each_page
def test_a_page_is_short_enough_to_be_read(page: Path) -> None:
    assert len(page.read_text().split()) <= 1_500, "split it, or cut it"


@each_page
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for included in INCLUDED.finditer(text):
        assert (ROOT / included["file"]).exists(), f"{page.name} includes {included['file']}"


def test_the_reference_has_every_public_name() -> None:
    documented = {
        name
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name in re.findall(r"^::: samplewise\.(?:\w+\.)*(\w+)$", page.read_text(), flags=re.MULTILINE)
    }
    assert documented >= set(sw.__all__)


def test_what_is_installed_from_a_checkout_is_there() -> None:
    for page in (*PAGES, ROOT / "examples" / "README.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            if "pip install" in line:
                assert not re.search(r"['\" ]\.\[", line), f"{page}: the root of the checkout is no package: {line}"
                for package, extras in re.findall(r"\./(\w+)(?:\[([\w,]+)\])?", line):
                    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
                    assert set(filter(None, extras.split(","))) <= set(project.get("optional-dependencies", {})), line


def test_nobody_is_told_to_install_from_an_index_that_does_not_have_it() -> None:
    from_an_index = re.compile(r"pip install[^\n`]*['\" ](samplewise|floormark|studies)\b")
    sources = (path for package in PACKAGES for path in (ROOT / package / "src").rglob("*.py"))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "examples").iterdir(), *sources]:
        if page.is_file():
            assert not from_an_index.search(page.read_text()), page


@each_page
def test_commands_have_the_options_they_are_given(page: Path) -> None:
    for block in SHELL.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            # Read as a call would read them, and no further.
            if words[:1] == ["floormark"]:
                floormark.cli.app.parser().parse_args(words[1:])
            elif words and words[0] in COMMANDS:
                command, rest = COMMANDS[words[0]], words[1:]
                while subcommands := getattr(command, "commands", None):
                    command = subcommands[rest.pop(0)]
                command.make_context(line, rest)


def test_the_site_builds_without_a_warning_and_asks_no_other_host_for_anything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = [page.read_text() for page in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > len(PAGES) - len(READMES) - 1
    for html in pages:
        assert not re.findall(r'<(?:script|img|link)\b[^>]*\b(?:src|href)="(https?:[^"]+)"', html)
        assert not re.findall(r":(?:attr|class|func|meth|mod):<code>", html), "a docstring is not in Markdown"
