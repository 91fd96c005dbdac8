"""The README's numbers are those of the committed results."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def test_the_mnist_table_is_the_committed_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = [line for line in readme.splitlines() if line.startswith(("| Classification only", "| Fixed", "| Penalty"))]
    table = json.loads((ROOT / "results/mnist/table.json").read_text(encoding="utf-8"))
    rows = [row for row in table["rows"] if row["epoch"] == "selected" and row["name"] != "classification"]
    assert found == [f"| {row['label']} | {' | '.join(_cells(row))} |" for row in rows]


def test_the_table_of_watermarking_tools_is_the_committed_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    table = (ROOT / "results/watermark/peers.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in table if line.startswith("|")]
    assert rows
    assert set(rows) <= set(readme)
    tools = ("| samplewise, ", "| blind-", "| invisible-")
    assert [line for line in readme if line.startswith(tools)] == [row for row in rows if row.startswith(tools)]


def _cells(row: dict[str, Any]) -> list[str]:
    cells = []
    for part in ("train", "test"):
        for measure, digits in (("accuracy", 4), ("satisfied", 3)):
            cell = row["cells"][part][measure]
            paper = "" if cell["paper"] is None else f" ({cell['paper']:.{digits}f})"
            cells.append(f"{cell['mean']:.{digits}f}{paper}")
    return cells
