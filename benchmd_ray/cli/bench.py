"""``benchmd bench``: available benchmarks and their declarations."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import JSON, print_json
from benchmd_ray.console.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmd_ray.evaluation.benchmark import Benchmark, Start
    from benchmd_ray.modality.modalities import Modality


@main.group()
def bench() -> None:
    """List the available benchmarks, and show what a benchmark declares.

    Benchmarks come from this package, from installed packages and from your own code.
    """


@bench.command("list")
@JSON
def bench_list(*, as_json: bool) -> None:
    """List the benchmarks for `--bench`."""
    from benchmd_ray.evaluation.registry import benchmarks, broken_benchmarks

    if as_json:
        print_json([_data(benchmark) for benchmark in benchmarks().values()])
        return
    width = max(map(len, benchmarks()))
    for name, benchmark in benchmarks().items():
        echo(f"{name:{width}}  {benchmark.title}")
    for why in broken_benchmarks().values():
        echo(f"note: {why}", err=True)


def _data(benchmark: Benchmark) -> dict[str, Any]:
    from benchmd_ray.data.cards import dataset_card

    names = map(dataset_card, benchmark.datasets())
    kinds = list({card.modality.name: card.modality for card in names}.values())
    return {
        **{name: getattr(benchmark, name) for name in ("name", "version", "title", "about")},
        "datasets": benchmark.datasets(),
        "starts": {start.name: _variants(start, kinds) for start in benchmark.starts},
        "evaluations": [evaluation.name for evaluation in benchmark.evaluations],
    }


def _variants(start: Start, kinds: Iterable[Modality]) -> list[str]:
    return list(dict.fromkeys(name for kind in kinds for name in start.variants(kind)))


@bench.command("show")
@click.argument("name")
def bench_show(name: str) -> None:
    """Show what the benchmark NAME declares: datasets, starts, published results."""
    from benchmd_ray.data.cards import dataset_card
    from benchmd_ray.evaluation.registry import benchmark

    chosen = benchmark(name)
    lines = [chosen.title, f"version {chosen.version}"]
    if chosen.about:
        lines += ["", *textwrap.wrap(chosen.about, 96)]
    cards = [dataset_card(dataset) for dataset in chosen.datasets()]
    lines += ["", f"datasets ({len(cards)}):"]
    names = ", ".join(card.name for card in cards)
    lines += textwrap.wrap(names, 94, initial_indent="  ", subsequent_indent="  ")
    lines += ["", "starts (--start):"]
    kinds = list({card.modality.name: card.modality for card in cards}.values())
    for start in chosen.starts:
        lines.append(f"  {start.name}: {start.meaning}")
        if variants := _variants(start, kinds):
            text = f"or one of {', '.join(variants)}"
            lines += textwrap.wrap(text, 92, initial_indent="    ", subsequent_indent="    ")
    if chosen.published is not None:
        published = f"published: {chosen.published.source}. {chosen.published.words}"
        lines += ["", *textwrap.wrap(published, 96)]
    for line in (*lines, "", f"run it: benchmd run --bench {name} --dry-run"):
        echo(line)
