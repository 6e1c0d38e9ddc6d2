"""``benchmd settings`` and ``benchmd completion``."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import SET, SETTINGS, complete_modality
from benchmd_ray.console.terminal import echo
from benchmd_ray.schema.plain_yaml import yaml_text


@main.command()
@SETTINGS
@SET
@click.option(
    "--modality",
    "modality_name",
    default="ecg",
    shell_complete=complete_modality,
    show_default=True,
    help="Modality of the fixed protocol (ldct has a different batch size).",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Explain each setting: meaning, allowed values and source.",
)
def settings(
    settings_file: Path | None, assignments: tuple[str, ...], modality_name: str, explain: bool
) -> None:
    """Print all settings as YAML, by default those of the fixed protocol."""
    from benchmd_ray.data.cards import kind_of
    from benchmd_ray.settings.definition import as_dict, default_settings, load_settings
    from benchmd_ray.settings.explain import explained

    chosen = load_settings(settings_file, assignments, default_settings(kind_of(modality_name)))
    if explain:
        for line in explained(chosen):
            echo(line)
        return
    for line in yaml_text(as_dict(chosen)).splitlines():
        echo(line)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a SHELL.

    \b
    bash: eval "$(benchmd completion bash)"
    """
    script_class = get_completion_class(shell)
    assert script_class is not None  # the choices are those of click
    for line in script_class(main, {}, "benchmd", "_BENCHMD_COMPLETE").source().splitlines():
        echo(line)
