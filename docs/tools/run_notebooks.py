"""Runs notebooks and keeps what they print and draw: ``python docs/tools/run_notebooks.py docs/tutorials/*.ipynb``."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def run(path: Path) -> None:
    """From top to bottom in an empty folder; nothing of the machine stays in the file."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        options = {"timeout": 900, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options).execute()
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(Path(argument))
