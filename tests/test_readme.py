"""The README is short, and its numbers are those of the committed results."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    return found


def test_the_first_page_can_be_finished() -> None:
    assert len(README) <= 110


def test_the_table_of_unseen_samples_is_that_of_the_demo() -> None:
    rows = [row for row in read("demo/table.json")["rows"] if row["epoch"] == "selected"]
    wanted = []
    for row in rows:
        if not row["name"].startswith("classification"):
            parts = [row["cells"][split] for split in ("train", "test")]
            cells = [f"{part['accuracy']['mean']:.4f} | {part['satisfied']['mean']:.3f}" for part in parts]
            wanted.append(f"| {row['label']} | {' | '.join(cells)} |")
    assert [line for line in README if line.startswith(("| Fixed", "| Penalty"))] == wanted


def test_the_caption_counts_what_the_fixed_weight_leaves_beyond_the_bound() -> None:
    rows = {(row["label"], row["epoch"]): row["cells"] for row in read("demo/table.json")["rows"]}
    beyond = 1 - rows["Fixed (λ = 100)", "selected"]["train"]["satisfied"]["mean"]
    assert f"leaves {100 * beyond:.1f} % of the training" in " ".join(README)


def test_the_table_of_the_watermarking_tool_is_the_committed_one() -> None:
    wanted = [
        f"| {run['floor']:g} | {run['images']} | {run['refused']} | {run['below_the_floor']} | "
        f"{run['psnr']['lowest']:.3f} | {run['exact']} of {run['written']} | {run['wrong']} |"
        for run in read("benchmarks/watermark_tool.json")["sizes"]["256 x 256"]
    ]
    assert [line for line in README if line.startswith(("| 40 ", "| 45 ", "| 50 "))] == wanted
