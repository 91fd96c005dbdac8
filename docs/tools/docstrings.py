"""Turns what docstrings have of reStructuredText into the Markdown that the reference pages are made of."""

import re
import textwrap
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`([^`]+)`")
LITERAL = re.compile(r"::\n\n((?:(?: {4}.*)?\n)+)")
TABLE = re.compile(r"^(=+)  =+\n((?:.+\n)+?)=+  =+$", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Roles become code, literal blocks are fenced, simple tables become tables, and an example is found as such."""
    text = ROLE.sub(r"`\1`", text)
    text = LITERAL.sub(lambda block: f":\n\n```python\n{textwrap.dedent(block[1]).strip()}\n```\n\n", text + "\n")
    text = TABLE.sub(lambda table: _table(len(table[1]), table[2]), text)
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _table(width: int, rows: str) -> str:
    cells = ((row[:width].strip(), row[width:].strip()) for row in rows.splitlines())
    return "\n".join(["| | |", "|---|---|", *(f"| `{left}` | {right} |" for left, right in cells)])
