"""A first card of a folder, for its user to correct."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from benchmd_ray.console.terminal import visible
from benchmd_ray.data.apart import Apart, Died
from benchmd_ray.data.card_files import Files
from benchmd_ray.data.cards import broken_cards, cards
from benchmd_ray.data.croissant import card_facts
from benchmd_ray.data.guess import TABLE
from benchmd_ray.data.guess_signal import Guess
from benchmd_ray.errors import BenchmdError, require_plain_name
from benchmd_ray.files.atomic import replacing
from benchmd_ray.modality.modalities import broken_modalities, modalities
from benchmd_ray.schema.plain_yaml import yaml_text

LEFT_OUT_UP_TO, FOLDS_UP_TO = 20, 100
"""Patients up to which a card proposes leave-one-out, and five folds."""


def new_card(
    name: str, folder: Path, out: Path, croissant: Path | None = None
) -> tuple[list[Path], Guess]:
    """Write a card of a folder, and one of its signal, into a folder of cards; overwrites none.

    Gives the files that were written, and what they rest on. Title, homepage, licence and citation
    are those of the dataset's Croissant file, if one is given.

    Raises:
        BenchmdError: The name is invalid or taken, or the folder has no file of a known format, or
            nothing that tells classes; or the Croissant file cannot be read.
    """
    require_plain_name("dataset", name)
    paths = [out / f"{name}.yaml", out / "modalities" / f"{name}.yaml"]
    for path in paths:
        if path.exists():
            raise BenchmdError(f"{path} is there already: choose another name, or edit it.")
    for kind, names in (
        ("dataset", {**cards(), **broken_cards()}),
        ("modality", {**modalities(), **broken_modalities()}),
    ):
        if name in names:
            raise BenchmdError(f"there is a {kind} of the name {name}: choose another.")
    if not folder.is_dir():
        raise BenchmdError(f"the folder {folder} does not exist.")
    facts = {} if croissant is None else card_facts(croissant)
    guess = _guess(folder)
    for path, text in zip(
        paths, (_dataset(name, guess, facts), _modality(name, guess)), strict=True
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(text, "utf-8")
    return paths, guess


def _guess(folder: Path) -> Guess:
    """What a folder seems to hold, looked at in a separate process."""
    with closing(Apart("benchmd_ray.data.guess")) as process:
        try:
            answer, _ = process.call({"folder": str(folder.absolute())})
        except Died as death:
            what = "a table" if death.place == TABLE else "its first file"
            raise BenchmdError(
                f"{folder}: {what} {death}: write the card by hand (docs/cards.md)."
            ) from death
    if "error" in answer:
        raise BenchmdError(answer["error"])
    return Guess(**answer)


def _dataset(name: str, guess: Guess, facts: Mapping[str, str]) -> str:
    lines = [
        f"# benchmd catalog build {name} --raw FOLDER --out catalogs/{name}",
        *(f"# CAUTION: {visible(what)}." for what in guess.cautions),
        f"name: {_flow(name)}",
        *(f"{key}: {_flow(text)}" for key, text in facts.items()),
        f"modality: {_flow(name)} # modalities/{name}.yaml; or another of `benchmd catalog list`",
        "task:",
        "  kind: single-label # or multi-label, or ordinal",
        f"  classes: {_flow(guess.classes)}",
        "files:",
        *(f"  {key}: {_flow(value)}" for key, value in guess.files.items()),
    ]
    if guess.private_names:
        lines.insert(-1 - len(guess.files), "private_names: true # names of files hold patients")
    if "split" not in guess.files and "split" not in guess.files.get("levels", ()):
        lines.append(_splits(guess))
    lines += [f"# Guessed: {visible(what)}." for what in guess.guessed]
    lines += [f"# Not known: {visible(what)}." for what in guess.unknown]
    return "\n".join(lines) + "\n"


def _splits(guess: Guess) -> str:
    """The line on splits: folds where patients are few."""
    few = f"{guess.patients} patients are too few for fixed splits: each"
    if 0 < guess.patients <= LEFT_OUT_UP_TO:
        return f"  splits: {{leave_one_out: patient}} # {few} is scored by a model of the others"
    if 0 < guess.patients <= FOLDS_UP_TO:
        return f"  splits: {{cross_validation: 5}} # {few} fifth is scored by a model of the others"
    what = "patients" if "patient" in guess.files else "files"
    return f"  drawn: {_flow(Files().drawn)} # of the {what}, each class in these shares"


def _modality(name: str, guess: Guess) -> str:
    lines = [
        f"name: {_flow(name)}",
        "batch_size: 64",
        "signal:",
        *(f"  {key}: {_flow(value)}" for key, value in guess.signal.items()),
        "task:",
        "  kind: single-label",
        f"  classes: {_flow(guess.classes)}",
    ]
    return "\n".join(lines) + "\n"


def _flow(value: object) -> str:
    text = yaml_text(value, default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()
