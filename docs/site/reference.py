"""The reference: commands by their help, settings as they are explained, Python by its docstrings.

Its pages are made when the site is built, and are as the code is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import benchmd_ray
from benchmd_ray.cli import main
from benchmd_ray.cli.group import ALL_OPTIONS, SECTIONS
from benchmd_ray.data.cards import kind_of
from benchmd_ray.settings.definition import default_settings
from benchmd_ray.settings.explain import explained

WIDTH = 80
"""Columns of a help text."""
RETURNED = (
    "benchmd_ray.data.map_style.SplitDataset",
    "benchmd_ray.training.applied.FeatureEncoder",
    "benchmd_ray.training.applied.SignalClassifier",
    "benchmd_ray.runs.store.Run",
    "benchmd_ray.report.analysis.Analysis",
)
EXTENSIONS = {
    "Methods and networks": (
        "benchmd_ray.ssl.method.Method",
        "benchmd_ray.models.encoder.Encoder",
        "benchmd_ray.models.drop_path.DropPath",
    ),
    "Datasets": (
        "benchmd_ray.data.raw.Discovery",
        "benchmd_ray.data.raw.RawItem",
        "benchmd_ray.data.raw.files",
        "benchmd_ray.data.records.Record",
        "benchmd_ray.data.records.RecordError",
        "benchmd_ray.data.records.RecordExcluded",
        "benchmd_ray.data.records.hashed_patient",
        "benchmd_ray.data.splits.hashed_split",
        "benchmd_ray.data.datasets.photographs.read",
    ),
    "Benchmarks": (
        "benchmd_ray.evaluation.benchmark.Benchmark",
        "benchmd_ray.evaluation.benchmark.Start",
        "benchmd_ray.evaluation.benchmark.Published",
        "benchmd_ray.settings.definition.Settings",
        "benchmd_ray.settings.definition.updated",
    ),
    "Evaluations": (
        "benchmd_ray.evaluation.evaluation.Evaluation",
        "benchmd_ray.evaluation.evaluation.Asked",
        "benchmd_ray.evaluation.evaluation.CLASSIFICATION",
        "benchmd_ray.training.predict.classified",
        "benchmd_ray.runs.predictions.Form",
        "benchmd_ray.runs.predictions.Predictions",
        "benchmd_ray.report.columns.column_of",
        "benchmd_ray.report.columns.key_columns",
        "benchmd_ray.report.columns.table_of",
        "benchmd_ray.report.tables.Declared",
    ),
    "Detectors": (
        "benchmd_ray.benchmarks.ood.methods.method.Detector",
        "benchmd_ray.benchmarks.ood.methods.method.nothing",
    ),
}
"""What pages on code of your own use, by what it is for."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, page in (("commands", commands), ("settings", settings), ("python", python)):
        content = "\n\n".join(page())
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def commands() -> Iterator[str]:
    """All commands, in the order of ``benchmd --help``."""
    yield "# Commands"
    top = click.Context(main, info_name="benchmd", max_content_width=WIDTH, terminal_width=WIDTH)
    top.meta[ALL_OPTIONS] = True
    yield f"```text\n{top.get_help()}\n```"
    named = {name for names in SECTIONS.values() for name in names}
    others = tuple(name for name in main.list_commands(top) if name not in named)
    for title, names in {**SECTIONS, "Single benchmarks": others}.items():
        yield f"## {title}"
        for name in names:
            yield from _command(name, top)


def _command(name: str, above: click.Context) -> Iterator[str]:
    group = above.command
    assert isinstance(group, click.Group)
    command = group.get_command(above, name)
    assert command is not None  # it is one of the group's list
    ctx = click.Context(command, parent=above, info_name=name)
    yield f"### {ctx.command_path}"
    yield f"```text\n{ctx.get_help()}\n```"
    if isinstance(command, click.Group):
        for each in command.list_commands(ctx):
            yield from _command(each, ctx)


def settings() -> Iterator[str]:
    """All settings, as ``benchmd settings --explain`` has them."""
    yield "# Settings"
    yield (
        "With the values of the fixed protocol of an ECG; `benchmd settings --explain --modality "
        "ldct` has those of another modality. [Running benchmarks](../running.md#single-runs) says "
        "how to change them."
    )
    lines = explained(default_settings(kind_of("ecg")), width=sys.maxsize)
    group = ""
    for line, text in zip(lines, lines, strict=True):
        begin, dot, _ = line.partition(" = ")[0].partition(".")
        if group != (group := begin if dot else "Others"):
            yield f"## {group}"
        yield f"`{line}`\n:   {_plain(text.strip())}"


def _plain(text: str) -> str:
    """Text without anything that Markdown would take for its own."""
    return re.sub(r"([\\`*_<>\[\]|])", r"\\\1", text)


def python() -> Iterator[str]:
    """The package's names, and what code of your own uses."""
    yield "# Python"
    yield "[From Python](../python.md) shows how these go together: `import benchmd_ray as bmd`."
    yield "## Functions and catalogs"
    yield from (f"::: benchmd_ray.{name}" for name in benchmd_ray.__all__)
    yield from (f"::: benchmd_ray.api.{name}" for name in ("Place", "Values"))
    yield "## What they return"
    yield from (f"::: {path}" for path in RETURNED)
    for title, paths in EXTENSIONS.items():
        yield f"## {title}"
        yield from (f"::: {path}" for path in paths)
