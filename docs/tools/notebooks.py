"""Turns the notebooks in docs/ into pages: their text, code and committed outputs as Markdown.

So they look as every other page, are searched, and their links are checked. In nav a notebook is named as a page,
``tutorials/own-loop.md``. Other pages link to the file, ``own-loop.ipynb``, so that a link works in the repository too.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?P<target>[^):#\s]+)\.ipynb(?=[)#])")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page and its pictures for each notebook; the notebook itself can still be downloaded."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        name = file.src_uri.removesuffix(".ipynb")
        cells = json.loads(Path(str(file.abs_src_path)).read_text(encoding="utf-8"))["cells"]
        parts, pictures = [], 0
        for cell in cells:
            source = "".join(cell["source"])
            parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
            for output in cell.get("outputs", []):
                if png := output.get("data", {}).get("image/png"):
                    pictures += 1
                    picture = f"{name}-{pictures}.png"
                    files.append(File.generated(config, picture, content=base64.b64decode("".join(png))))
                    parts.append(f"![Drawn by the code above]({Path(picture).name})")
                else:
                    parts.append(_output(output))
        title, _, rest = "\n\n".join(parts).partition("\n")
        download = f'<a class="notebook" href="{Path(name).name}.ipynb" download>Download this page as a notebook</a>'
        files.append(File.generated(config, f"{name}.md", content=f"{title}\n\n{download}\n{rest}"))
    return files


def _output(output: dict[str, Any]) -> str:
    """What a cell printed, or the value of its last line."""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"``` {{.text .output}}\n{text}\n```"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to notebooks to their pages."""
    return LINK.sub(r"\g<target>.md", markdown)
