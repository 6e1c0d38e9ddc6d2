"""Notebooks as pages: their text, code and stored outputs. Nothing is executed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SUFFIX = ".ipynb"
STYLE = re.compile(r"<style scoped>.*?</style>\n?", re.DOTALL)
TABLE = re.compile(r'<table border="1" class="dataframe">')


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    for file in [file for file in files if file.src_uri.endswith(SUFFIX)]:
        notebook = json.loads(Path(str(file.abs_src_path)).read_text("utf-8"))
        page = f"{file.src_uri.removesuffix(SUFFIX)}.md"
        files.append(File.generated(config, page, content=markdown(notebook)))
    return files


def markdown(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield _output(output)


def _output(output: dict[str, Any]) -> str:
    shown = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in shown:
        encoded = shown["image/png"].replace("\n", "")
        return f"![What this code draws](data:image/png;base64,{encoded})"
    if "text/html" in shown:  # a DataFrame, without the style of its own
        return TABLE.sub("<table>", STYLE.sub("", shown["text/html"]))
    text = shown.get("text/plain") or "".join(output["text"])
    return f"```text\n{text.rstrip()}\n```"
