"""Sources of the code that computes results, compared with those that were recorded.

    python tests/parts.py                  # what differs
    python tests/parts.py accept NAME…     # after its version was raised, or if no result changes

A source is its syntax tree without docstrings, comments, the texts of errors and the modules that
names of the package are imported from: wording may change and modules may move freely. What is
recorded is in ``parts.json``.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import benchmd_ray
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.extensions.parts import PARTS, Part

PACKAGE = Path(benchmd_ray.__file__).parent
RECORDED = Path(__file__).with_name("parts.json")
_SCORE_NOTHING = (
    *("__init__.py", "commands.py", "demo.py", "guard.py", "report.py", "report_figures.py"),
    *("report_rows.py", "measures.py", "scores.py", "board.py"),
)
_ROBUSTNESS = ("corrupted.py", "robustness.py", "robustness_report.py")
_OOD = tuple(
    sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "benchmarks" / "ood").rglob("*.py")
        if path.name not in (*_SCORE_NOTHING, *_ROBUSTNESS)
    )
)
EVALUATED = {
    "classification": (
        "training/predict.py",
        "runs/predictions.py",
        "training/collect.py",
        "training/forward.py",
        "scores/metrics.py",
        "scores/units.py",
    ),
    "segmentation": (
        "training/segmented.py",
        "training/segmentation.py",
        "training/collect.py",
        "models/segmenter.py",
        "data/geometry.py",
        "scores/dice.py",
    ),
    "ood": tuple(name for name in _OOD if Path(name).name not in ("released.py", "search.py")),
    "ood-released": _OOD,
    "ood-tuned": _OOD,
    "robustness": (
        "benchmarks/ood/corrupted.py",
        "benchmarks/ood/conform.py",
        *(name for name in _OOD if "/faults/" in name),
        "training/predict.py",
        "training/collect.py",
        "scores/metrics.py",
        "scores/units.py",
    ),
}
"""Sources of evaluations, whose versions are in their predictions."""


class _Plain(ast.NodeTransformer):
    """Leaves out what no result depends on."""

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        return ast.Raise(exc=None, cause=None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        return None if _is_internal(node) else node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_text(s)]  # type: ignore[attr-defined]
        return node


def _is_internal(node: ast.ImportFrom) -> bool:
    return (node.module or "").partition(".")[0] == "benchmd_ray"


def _imported(tree: ast.AST) -> list[tuple[str, str]]:
    """Names of the package that a module imports, and what it calls them."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = (alias for node in nodes if _is_internal(node) for alias in node.names)
    return sorted((alias.name, alias.asname or alias.name) for alias in names)


def _is_text(statement: ast.AST) -> bool:
    held = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr) and isinstance(getattr(held, "value", None), str)


def source_of(package: Path, files: Sequence[str]) -> str:
    """SHA-256 of the syntax trees of some files."""
    whole = hashlib.sha256()
    for name in files:
        tree = ast.parse((package / name).read_text("utf-8"))
        imported = repr(_imported(tree))
        whole.update((imported + ast.dump(_Plain().visit(tree))).encode())
    return whole.hexdigest()


def parts_now() -> dict[str, Part]:
    """All parts: of training, of data (modules with a ``VERSION``), and evaluations."""
    found = dict(PARTS)
    for name, files in EVALUATED.items():
        found[f"evaluation {name}"] = Part(evaluations()[name].form.version, files)
    for path in sorted((PACKAGE / "data").rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [getattr(t, "id", "") for t in getattr(node, "targets", [])]
            if names == ["VERSION"] and isinstance(node, ast.Assign):
                name = path.relative_to(PACKAGE).as_posix()
                found[name] = Part(ast.literal_eval(node.value), (name,))
    return found


def differing(
    parts: Mapping[str, Part], recorded: Mapping[str, Sequence[object]], package: Path = PACKAGE
) -> list[str]:
    """What is to be done, part by part; nothing where all is as recorded."""
    said = []
    for name, part in parts.items():
        version, source = recorded.get(name, (None, None))
        accept = f"python tests/parts.py accept {name!r}"
        if part.version != version:
            said.append(f"{name}: version {part.version} is not recorded ({version} is): {accept}")
        elif source_of(package, part.files) != source:
            said.append(
                f"{name}: {', '.join(part.files)} changed and its version did not: raise it if "
                f"results change, and in either case record it: {accept}"
            )
    return said + [
        f"{name}: recorded, and no part any more: python tests/parts.py accept {name!r}"
        for name in sorted(recorded.keys() - parts.keys())
    ]


def main(arguments: Sequence[str]) -> int:
    """Compare, or accept."""
    parts = parts_now()
    recorded = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    if arguments[:1] == ["accept"]:
        for name in arguments[1:]:
            if name in parts:
                recorded[name] = [parts[name].version, source_of(PACKAGE, parts[name].files)]
            elif recorded.pop(name, None) is None:
                sys.stdout.write(f"{name} is not a part; there are: {', '.join(parts)}\n")
                return 2
        RECORDED.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")
    said = differing(parts, recorded)
    sys.stdout.write("\n".join(said or ["All parts are as recorded."]) + "\n")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
