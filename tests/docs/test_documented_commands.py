"""Command lines, options and settings on the pages exist: each is parsed, and none is executed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from benchmd_ray.cli import main
from benchmd_ray.settings.definition import setting_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "search_spaces/README.md"])
PAGES.remove(ROOT / "CHANGELOG.md")  # it also names what is gone
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
OF_OTHERS = {
    *("--head", "--port", "--dashboard-port", "--dashboard-agent-listen-port"),  # ray start
    "--metrics-export-port",
    *("--memory", "--network"),  # docker run
    *("--minutes", "--only"),  # python -m speed.gpu
}
"""Options on the pages that are of other programs."""
FREE = ("encoder.options.", "pretrain.options.")
"""Beginnings of settings that a method or network of your own has."""
CHECKED = click.Choice | type(click.INT) | type(click.FLOAT)
"""Kinds of values that are looked at; others name files and things of the reader."""


def page_text(path):
    """Shell lines of a page's blocks, and its inline code."""
    text = path.read_text("utf-8")
    blocks = [code for language, code in FENCE.findall(text) if language in ("", "bash")]
    lines = [line for code in blocks for line in code.replace("\\\n", " ").splitlines()]
    for name, options in re.findall(r'^(\w+)="(--.*)"$', "\n".join(lines), re.MULTILINE):
        lines = [line.replace(f"${name}", options) for line in lines]
    prose = FENCE.sub("", text)
    return lines, [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def words_of(line):
    """The words after ``benchmd`` of a shell line; None where it has no such command."""
    line = re.sub(r"(^|\s)#.*", "", line)
    found = re.search(r"(?:^|[\s(])benchmd\s+(.*)", line)
    if found is None:
        return None
    inside = found[1].partition(")")[0] if "$(benchmd" in line else found[1]
    return shlex.split(re.split(r"\s[|>&;]", inside)[0])


def parsed(words, *, whole):
    """Parse words as click does, and convert the values of numbers and choices.

    Args:
        words: After ``benchmd``.
        whole: Whether what the command requires must be there, too.
    """
    command, ctx = main, click.Context(main, info_name="benchmd")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        command = command.get_command(ctx, name)
        assert command is not None, f"no command {name!r}"
        ctx = click.Context(command, parent=ctx, info_name=name)
    if command.name == "submit" and "--" in words:
        place = words.index("--")
        if not words[place + 1].isupper():
            parsed(words[place + 1 :], whole=whole)
    try:
        values, more, _ = command.make_parser(ctx).parse_args(list(words))
    except click.BadOptionUsage:  # its value is missing
        if whole:
            raise
        return
    assert command.allow_extra_args or not more, f"unexpected {more}"
    for param in command.get_params(ctx):
        value = values.get(param.name)
        assert value or not (whole and param.required), f"{param.get_error_hint(ctx)} is missing"
        if isinstance(param.type, CHECKED):
            for each in value if param.multiple and value else [value]:
                if isinstance(each, str):
                    param.type.convert(each, param, ctx)


def sections(path):
    """Each block of shell lines of a page with the page's title and the text of its section."""
    text = path.read_text("utf-8")
    for block in FENCE.finditer(text):
        if block[1] in ("", "bash"):
            above = text[: block.start()]
            yield block[2], text.partition("\n")[0] + above[above.rfind("\n## ") :]


def all_options(command=main, above=None):
    """Options of a command and of all below it."""
    ctx = click.Context(command, parent=above, info_name=command.name)
    options = {name for param in command.get_params(ctx) for name in param.opts}
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            options |= all_options(command.get_command(ctx, name), ctx)
    return options


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_of_the_documentation_exist_with_their_options(path):
    lines, codes = page_text(path)
    for line, whole in [*((line, True) for line in lines), *((code, False) for code in codes)]:
        words = words_of(line) if whole or line.startswith("benchmd ") else None
        if words and not words[0].isupper() and words[0] != "…":
            try:
                parsed([word for word in words if word != "…"], whole=whole)
            except (click.UsageError, AssertionError) as error:
                pytest.fail(f"{path.name}: {line}: {error}")


def test_options_and_settings_named_in_the_text_exist():
    options, settings = all_options() | OF_OTHERS, set(setting_names())
    groups = {name.partition(".")[0] for name in settings if "." in name}
    above = {name.rpartition(".")[0] for name in settings}
    for path in PAGES:
        lines, codes = page_text(path)
        for option in (each for code in codes for each in re.findall(r"^--[a-z][\w-]+", code)):
            assert option in options, f"{path.name}: {option}"
        named = [name for line in lines for name in re.findall(r"--set ([\w.]+)=", line)]
        named += [name for code in codes for name in re.findall(r"^([a-z_]+\.[a-z_.]+)\b", code)]
        for name in named:
            if name.partition(".")[0] in groups and not name.startswith(FREE):
                assert name in settings | above, f"{path.name}: {name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_that_need_a_cluster_or_s3_say_so(path):
    for code, section in sections(path):
        code = re.sub(r"(^|\s)#.*", "", code)
        if re.search(r"\bbenchmd (submit|jobs)\b|^ *ray |--address", code, re.MULTILINE):
            assert "cluster" in section.lower(), code
        if "s3://" in code:
            assert "S3" in section or "object storage" in section, code


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("benchmd catalogue list", "no command 'catalogue'"),
        ("benchmd report runs --no-figures", "no-figures"),
        ("benchmd report runs --figures some", "some"),
        ("PRETRAINED=$(benchmd pretrain --technique mae)", "'--catalog' is missing"),
        ("benchmd completion bash zsh", "unexpected"),
        ("benchmd submit --follow -- run --no-such", "no-such"),
        ("benchmd run --gpus many  # a number", "many"),
    ],
)
def test_a_line_that_is_no_command_is_found(line, fault):
    with pytest.raises((click.UsageError, AssertionError), match=fault):
        parsed(words_of(line), whole=True)
