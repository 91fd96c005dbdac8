"""The notebooks: committed with what they print and draw, small, and the same story when they run afresh."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
NOTEBOOKS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
# What the text says of a run, by the notebook's own names.
CLAIMS = {
    "compression": "audits['a bound on every block'].satisfied > audits['a weight of 200 on the error'].satisfied "
    "and audits['a bound on every block'].objective < audits['a weight of 200 on the error'].objective - 10",
    "mark": "certificate.fidelity.psnr >= 45 and all(each.message == 'study 4711' for each in read.values())",
    "own-loop": "sw.audit(problem, model, train).satisfied > 0.97 and sw.audit(problem, model, test).satisfied + 0.05 "
    "< sw.audit(problem, safer, test).satisfied",
    "promise": "promised.kept and audit.satisfied >= 0.9 and not refused.kept and monitor.alarm",
    "tokens": "audits['bound on every token'].satisfied > 0.99 > 0.1 > audits['nothing bounded'].satisfied",
    "update": "flips['with a bound'] < flips['without a bound'] / 5",
}


def outputs(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [output for cell in cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_committed_as_it_ran(name: str) -> None:
    text = NOTEBOOKS[name].read_text(encoding="utf-8")
    assert len(text) < 300_000
    cells = json.loads(text)["cells"]
    ran = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert ran == list(range(1, len(ran) + 1)), "from top to bottom, once"
    found = outputs(cells)
    assert any("image/png" in output.get("data", {}) for output in found)
    for output in found:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", "a warning is mended, not shown"
        said = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
        assert len(said) < 2_000
        assert not re.search(r"/(home|root|tmp|work)/", said)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_of_a_notebook_lead_somewhere(name: str) -> None:
    cells = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)#:]+)[^)]*\)", text)
    assert targets
    assert all((FOLDER / target).exists() for target in targets)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_afresh_and_tells_the_same(name: str, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(f"assert {CLAIMS[name]}"))
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
