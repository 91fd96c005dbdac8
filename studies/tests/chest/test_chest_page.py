"""The table of the chest study in the documentation is that of the committed results."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def test_the_table_is_the_committed_one() -> None:
    report = json.loads((ROOT / "results/chest/impact/report.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/paper/chest.md").read_text(encoding="utf-8").splitlines()
    for line in rows(report):
        assert line in page


def rows(report: dict[str, Any]) -> list[str]:
    """A line for each pathology that counts and one for their mean: ours, in brackets what the paper has."""
    column, paper = report["paper_column"], report["paper"]
    lines = []
    for place, one in enumerate(report["originals"]["pathologies"]):
        published = paper[one["pathology"]]
        if one["counts"]:
            cells = [f"{one['auroc']['value']:.3f} ({published['base']:.3f})"]
            for run in report["runs"]:
                cells.append(f"{run['differences'][place]['auroc']['value']:+.4f}")
                if run["name"] in column:
                    cells[-1] += f" ({published[column[run['name']]]:+.3f})"
            lines.append(f"| {one['pathology'].replace('_', ' ')} | {' | '.join(cells)} |")
    means = [f"{report['originals']['mean_auroc']['value']:.3f} ({_mean(paper, 'base'):.3f})"]
    for run in report["runs"]:
        means.append(f"{run['mean']['value']:+.4f}")
        if run["name"] in column:
            means[-1] += f" ({_mean(paper, column[run['name']]):+.3f})"
    return [*lines, f"| Mean | {' | '.join(means)} |"]


def _mean(paper: dict[str, dict[str, float]], column: str) -> float:
    return sum(row[column] for row in paper.values()) / len(paper)
