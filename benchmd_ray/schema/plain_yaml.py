"""Bounded YAML of plain values: no text can make reading it slow or use much memory.

Format: https://yaml.org/spec/1.1/, without tags, merges and dates. Texts are converted to Unicode's
composed form, in which names are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmd_ray.errors import BenchmdError, composed, same_form, shown

MAX_CHARACTERS = 2**16
"""Most characters of a text, which take about a second; the largest file of the package has
4,400.
"""
MAX_DEPTH = 16
"""Deepest nesting of lists and mappings; four levels are in use. Each takes a few Python frames."""
MAX_VALUES = 10_000
"""Most values of a text, counting those of an anchor again for each alias."""
MAX_DIGITS = 40
"""Most characters of a number; 64 bits take 20."""
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
UNTAKEN = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
"""Implicit types of SafeLoader that stay text here."""


def read_yaml(text: str, what: str) -> Any:
    """Value of a YAML text: mappings, lists, texts, numbers, true, false and null.

    Args:
        text: The text.
        what: What it is, for messages, such as ``the card x.yaml``.

    Raises:
        BenchmdError: It is not valid, has a key twice, or is too long or too deeply nested.
    """
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it has more than {MAX_CHARACTERS:,} characters")
        return yaml.load(text, _PlainValues)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: 0x_, "\UFFFFFFFF"
        raise BenchmdError(f"cannot read {what}: {' '.join(str(error).split())}") from error


def read_yaml_file(path: Path, what: str) -> Any:
    """Value of a YAML file, see `read_yaml`.

    Raises:
        BenchmdError: As for `read_yaml`, or the file cannot be opened or is not UTF-8 text.
    """
    try:
        with path.open("rb") as file:
            text = file.read(4 * MAX_CHARACTERS + 1).decode("utf-8")
    except OSError as error:
        raise BenchmdError(f"cannot read {what}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BenchmdError(f"cannot read {what}: it is not UTF-8 text ({error.reason}).") from error
    return read_yaml(text, what)


def yaml_text(content: Any, **options: Any) -> str:
    """Plain values as YAML that `read_yaml` reads, keys in their order.

    Args:
        content: Mappings, lists, texts, numbers, true, false and null.
        **options: Options of ``yaml.dump``, such as its width.
    """
    dumped: str = yaml.dump(
        content, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, **options
    )
    return dumped


class Lined(dict[Any, Any]):
    """A mapping that knows the line number, from 1, of each key."""

    def __init__(self, content: Mapping[Any, Any] | None = None) -> None:
        super().__init__(content or {})
        self.lines: dict[Any, int] = {}


class _PlainValues(yaml.SafeLoader):
    """A loader that refuses a short text before it expands to a large or deep value."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the class above has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in UNTAKEN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = values = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.anchored: dict[str | None, int] = {}
        """Number of values that each anchor stands for."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node.

        Raises:
            ComposerError: It has a tag, is nested too deeply, expands to too many values, or is a
                number with too many digits or a text that is not Unicode.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self.values
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors:  # an alias within its own anchor has no count yet
                self.values += self.anchored.get(event.anchor, MAX_VALUES)
        elif event.tag is not None:
            raise _refused(
                f"the tag {shown(event.tag)} is not supported: write plain values", event
            )
        self.values += 1
        self.depth += 1
        if self.depth > MAX_DEPTH or self.values > MAX_VALUES:
            most = f"{MAX_VALUES:,} values, nested in {MAX_DEPTH} levels"
            raise _refused(f"expected at most {most}, aliases written out", event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if event.anchor is not None and not isinstance(event, yaml.AliasEvent):
            self.anchored[event.anchor] = self.values - before
        if isinstance(node, yaml.ScalarNode):
            if node.tag in NUMBERS and len(node.value) > MAX_DIGITS:
                raise _refused(f"a number has {len(node.value):,} digits", event)
            if any("\ud800" <= letter <= "\udfff" for letter in node.value):
                raise _refused("a text holds half a character", event)
            node.value = composed(node.value)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping.

        Raises:
            ConstructorError: A key appears twice; YAML would drop the first silently.
        """
        seen: set[str] = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode):
                if name.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        f"the key {name.value!r} appears twice{same_form(name.value)}",
                        name.start_mark,
                    )
                seen.add(name.value)
        return super().construct_mapping(node, deep)


def _lined(loader: _PlainValues, node: yaml.MappingNode) -> Iterator[Lined]:
    mapping = Lined()
    yield mapping  # its values may refer to it
    mapping.update(loader.construct_mapping(node))
    for name, _ in node.value:
        if isinstance(name, yaml.ScalarNode):
            mapping.lines[loader.construct_object(name)] = name.start_mark.line + 1


class _PlainDumper(yaml.SafeDumper):
    """Quotes texts that `read_yaml` would take for numbers."""


for _way in (_PlainValues, _PlainDumper):  # 1e-4 is text in YAML 1.1, a number in YAML 1.2
    _way.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))
_PlainValues.add_constructor("tag:yaml.org,2002:map", _lined)


def _refused(reason: str, event: Any) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, reason, event.start_mark)
