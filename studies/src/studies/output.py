"""What all studies write alike: tables in Markdown, and the folder of an evaluation."""

from collections.abc import Collection, Sequence
from pathlib import Path

from samplewise.errors import ConfigurationError
from samplewise.storage import ensure_writable


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    r"""A table whose columns line up; the first row is its head.

    Example:
        >>> print(markdown_table([["run", "PSNR"], ["c|40", "41.2"]]))
        | run   | PSNR |
        |-------|------|
        | c\|40 | 41.2 |
    """
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def open_output(out: Path, names: Collection[str]) -> Path:
    """Make ``out`` ready: a new or empty folder, or one of an earlier evaluation, which holds nothing but ``names``."""
    if out.is_dir():
        foreign = sorted(path.name for path in out.iterdir() if path.name not in names and path.name[0] != ".")
        if foreign:
            raise ConfigurationError(f"{out}: holds {foreign[0]}, which is not of an evaluation; choose another folder")
    elif out.exists():
        raise ConfigurationError(f"{out}: is a file; choose a folder")
    return ensure_writable(out)
