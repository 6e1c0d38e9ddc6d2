"""The site also has pages of the repository that are not in ``docs``; links lead from and to them.

Pages are written for the repository: their links are paths in it, and become those of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "cluster.yaml": "cluster.yaml",
    "search_spaces/README.md": "search_spaces.md",
    "speed/README.md": "speed.md",
    **{f"deploy/{path.name}": f"deploy/{path.name}" for path in (ROOT / "deploy").glob("*")},
}
"""Files outside of ``docs`` by their path in the repository, with their place on the site."""
NOTEBOOK = ".ipynb"
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files that are elsewhere."""
    for path, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into those of the site, outside of code."""
    here = page.file.src_uri
    repository = {place: path for path, place in ELSEWHERE.items()}
    folder = posixpath.dirname(repository.get(here, f"docs/{here}"))

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        place = ELSEWHERE.get(path, path.removeprefix("docs/"))
        if place.endswith(NOTEBOOK):
            place = f"{place.removesuffix(NOTEBOOK)}.md"
        return posixpath.relpath(place, posixpath.dirname(here) or ".")

    parts, end = [], 0
    for code in FENCE.finditer(markdown):
        parts += [LINK.sub(link, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(link, markdown[end:])])
