"""The page of the tool: its code runs, and its commands are understood."""

import re
import shlex
from pathlib import Path

from floormark.cli.app import parser

PAGE = Path(__file__).parents[1] / "README.md"
TEXT = PAGE.read_text()


def test_the_code_runs_as_it_stands() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), namespace)
    assert getattr(namespace["found"], "message", None) == "patient 4711"


def test_commands_are_understood() -> None:
    commands = re.findall(r"(?:^\$ |`)(floormark [^`\n]+)", TEXT, flags=re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        parser().parse_args(shlex.split(command)[1:])
