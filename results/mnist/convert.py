"""Put the committed rows into the layout that the study reads; run once, in the folder of this file's repository.

    python results/mnist/convert.py

Until then each row held the history of ``fit`` a second time beside it, and the numbers of two of its epochs a third
time in ``result.json``; ``search/`` held the third only, in folders that nothing read. Now a row has
``fit/history.csv``, as ``fit`` writes it, and ``result.json`` says which row it is and which epoch was selected.
Nothing is made up: the numbers in ``result.json`` must be those of the history; a search row's history has the two
epochs whose numbers were kept.
"""

import csv
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
SAMPLES = {"test": {"train": 60_000, "test": 10_000}, "validation": {"train": 50_000, "validation": 10_000}}
KEYS = {"objective": "objective", "accuracy": "accuracy", "mse": "reconstruction"}


def columns(epoch: int, metrics: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The numbers of an epoch under the names of the history."""
    found: dict[str, Any] = {"epoch": epoch}
    for split, numbers in metrics.items():
        for name, value in numbers.items():
            found[f"{split}/{KEYS.get(name, f'reconstruction/{name}')}"] = value
    return found


def convert(path: Path) -> None:
    """Convert the row with this result."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    if "last" not in stored:
        return  # done before
    folder = path.parent
    rows = [columns(stored[which]["epoch"], stored[which]["metrics"]) for which in ("selected", "last")]
    history = folder / "fit" / "history.csv"
    history.parent.mkdir(exist_ok=True)
    if (folder / "history.csv").exists():
        (folder / "history.csv").replace(history)
        with history.open(newline="", encoding="utf-8") as file:
            whole = {int(row["epoch"]): row for row in csv.DictReader(file)}
        for row in rows:
            kept = whole[row["epoch"]]
            assert all(float(kept[name]) == value for name, value in row.items()), folder
    else:
        with history.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows if rows[0]["epoch"] != rows[1]["epoch"] else rows[1:])
    stored["selected"].pop("metrics")
    stored["samples"] = SAMPLES[stored["settings"]["held_out"]]
    kept_keys = ("format", "name", "row", "seed", "samples", "selected", "black_image", "provenance")
    path.write_text(json.dumps({key: stored[key] for key in kept_keys}, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Move the search's rows to where rows are, and convert all."""
    search = ROOT / "search"
    for folder in [path.parent for path in search.glob("*/result.json")]:
        target = search / "rows" / folder.name / "seed-0"
        target.parent.mkdir(parents=True)
        folder.replace(target)
    for path in sorted(ROOT.rglob("rows/*/seed-*/result.json")):
        convert(path)


if __name__ == "__main__":
    main()
