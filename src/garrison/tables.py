"""Tables of settings: the one reader from a table of TOML to a typed record, with one form of error.

    class MergeConfig(Value):
        turn: float = setting(900.0, number("seconds", 1, 86_400))

A record declares its table: a field's name is the key, its default applies if the key is absent, and its reader
    converts the file's value. A reader raises ValueError with the expected value; this module adds file and line, table
    and key:

    config.toml:12: [merge] turn=0 should be seconds from 1 to 86400
    config.toml:12: [merge] trun is not a setting; did you mean turn?

Keys that start with `x_` are the user's own. tomllib does not report lines, so the line of a key is searched when
needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from enum import StrEnum
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from garrison.errors import UsageError
from garrison.spelling import nearest
from garrison.values import Value, replace

D = TypeVar("D")
T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)
Reader = Callable[[object], T]
"""Converts a file's value; ValueError says what is expected."""
MAX_LINES = 2000
"""Maximum number of lines searched for a key."""
_MAX_SHOWN = 80


class Nested(Value, Generic[T]):
    """Reader of a table within a table, whose errors name their own line and keys."""

    read: Callable[[Table], T]


# --- declaring a table ------------------------------------------------------------------------------------------------


class _Setting(Value):
    """Declaration of a key, stored as a field's default factory."""

    default: object
    read: Reader[Any] | Nested[Any]
    keys: tuple[str, ...] | None = None
    """Keys of the table that it collects; None: the key of its own name."""
    is_secret: bool = False

    def __call__(self) -> object:
        """Return the default."""
        return {} if self.default is dict else self.default


def _declare(setting: _Setting) -> Any:
    return msgspec.field(default_factory=setting)


def setting(default: D, read: Reader[T], *, is_secret: bool = False) -> D | T:
    """Declare a field set by the key of its name; the value of a secret one is never shown."""
    return _declare(_Setting(default, read, is_secret=is_secret))  # type: ignore[no-any-return]


def empty_table(read: Reader[Mapping[str, T]] | Nested[Mapping[str, T]]) -> Mapping[str, T]:
    """Declare a field set by the table of its name, empty without one."""
    return _declare(_Setting(dict, read))  # type: ignore[no-any-return]


def settings_by_key(keys: Iterable[Word], read: Reader[T]) -> Mapping[Word, T]:
    """Declare a field that collects the table's values for `keys`."""
    return _declare(_Setting(dict, read, tuple(keys)))  # type: ignore[no-any-return]


def _settings_of(record: type[Any]) -> Iterator[tuple[str, _Setting]]:
    """Yield the fields of a record that a table sets, in order."""
    defaults = record.__struct_defaults__
    # as with a function's parameters, the defaults belong to the last fields
    for name, default in zip(record.__struct_fields__[-len(defaults):] if defaults else (), defaults, strict=True):
        if isinstance(made := getattr(default, "factory", None), _Setting):
            yield name, made


def is_secret(record: type[Any], key: str) -> bool:
    return any(name == key and each.is_secret for name, each in _settings_of(record))


def readers_of(record: type[Any]) -> Mapping[str, Reader[Any] | Nested[Any]]:
    """Return the keys that a record declares, in order, with their readers."""
    return {key: each.read for name, each in _settings_of(record) for key in each.keys or (name,)}


# --- reading one ------------------------------------------------------------------------------------------------------


class Table(Value):
    """Table of a file, or attributes of a node; `file` is the place named in errors."""

    file: str
    values: Any
    keys: tuple[str, ...] = ()
    """Keys on the path to it; none for the file itself."""
    text: str = ""
    """The whole file."""

    @classmethod
    def parse(cls, file: object, data: bytes) -> Table:
        """Parse a TOML file; UsageError if invalid."""
        import tomllib  # most processes need no configuration

        try:
            text = data.decode()
            return cls(str(file), tomllib.loads(text), text=text)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{file} is not TOML: {error}") from error

    @property
    def name(self) -> str:
        return f"[{'.'.join(self.keys)}]" if self.keys else ""

    def below(self, *keys: str) -> Table:
        """Return a table in it, empty if there is none of that name."""
        values = self.values
        for key in keys:
            values = values.get(key, {}) if isinstance(values, Mapping) else {}
        return Table(self.file, values, (*self.keys, *keys), self.text)

    def place(self, *keys: str) -> str:
        """Return the file and the line that sets the key at the path `keys`, else the line of the table."""
        path = (*self.keys, *keys)
        line = next((found for end in range(len(path), 0, -1) if (found := line_of(self.text, path[:end]))), None)
        return f"{self.file}:{line}" if line else self.file

    def error(self, text: str, *keys: str) -> UsageError:
        """Return an error about a key, or the whole table, with its place."""
        return UsageError(f"{self.place(*keys)}: {self.name} {text}" if self.keys else f"{self.place(*keys)}: {text}")

    def require(self, known: Collection[str]) -> Mapping[str, object]:
        """Return its values; UsageError if it is not a table."""
        if not isinstance(self.values, Mapping):
            what = f"{'.'.join(self.keys)} " if self.keys else ""
            raise UsageError(f"{self.place()}: {what}should be a table with {', '.join(known)}")
        return self.values

    def unknown(self, known: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """Yield (problem, likely key) for each key that is neither known nor the user's own."""
        for key in self.require(known):
            if key not in known and not str(key).startswith("x_"):
                near = nearest(str(key), known)
                fix = f"did you mean {near}?" if near else f"there are {', '.join(known)}; your own keys start " \
                    "with x_"
                what = f"{key} is not a setting" if self.keys else f"garrison reads no table or key {key}"
                yield str(self.error(f"{what}; {fix}", str(key))), near

    def value(self, key: str, read: Reader[T] | Nested[T], default: D, *, is_secret: bool = False) -> D | T:
        """Return the value of one key; UsageError for a wrong one, which is shown unless it may be secret."""
        values = self.require((key,))
        if key not in values:
            return default
        try:
            return read.read(self.below(key)) if isinstance(read, Nested) else read(values[key])
        except ValueError as error:
            is_hidden = is_secret or isinstance(values[key], Mapping)  # variables, for example
            shown = "" if is_hidden else f"={values[key]!r}"
            cut = "…" if len(shown) > _MAX_SHOWN else ""
            raise self.error(f"{key}{shown[:_MAX_SHOWN]}{cut} should be {error}", key) from None

    def read(self, record: type[T], base: T | None = None, *, others: Collection[str] | None = (),
             names: Mapping[str, str] = MappingProxyType({})) -> T:
        """Return the record of this table; UsageError for a wrong value or an unknown key.

        Args:
            base: values of absent keys; default: the record's defaults.
            others: keys with other readers; None: any key is allowed.
            names: key of the record → key of this table, if different.
        """
        readers = {names.get(key, key): read for key, read in readers_of(record).items()}
        values = self.require(tuple(readers))
        if others is not None:
            for wrong, _ in self.unknown((*readers, *(key for key in others if key not in readers))):
                raise UsageError(wrong)
        read: dict[str, object] = {}
        for name, each in _settings_of(record):
            if each.keys is not None:
                read[name] = {key: self.value(key, each.read, None) for key in each.keys if key in values}
            elif (key := names.get(name, name)) in values:
                read[name] = self.value(key, each.read, None, is_secret=each.is_secret)
        return record(**read) if base is None else replace(base, **read)

    def text_with(self, keys: Sequence[str], value: str) -> str | None:
        """Return the whole file with a key set to a text; None if its form does not allow that."""
        *above, key = keys
        line, lines = f'{key} = "{value}"', self.text.splitlines()
        # TOML allows spaces and either kind of quotes in the keys of a header
        name = r"\s*\.\s*".join(rf"(?:{each}|\"{each}\"|'{each}')" for each in map(re.escape, above))
        header = next((number for number, each in enumerate(lines)
                       if re.fullmatch(rf"\s*\[\s*{name}\s*\]\s*(#.*)?", each)), None)
        if stated := line_of(self.text, keys):
            lines[stated - 1] = line
        elif header is not None:
            lines.insert(header + 1, line)
        else:
            lines += [*([""] if lines else []), f"[{'.'.join(above)}]", line]
        text, wanted = "\n".join([*lines, ""]), deepcopy(self.values)
        try:
            # The line-based edit does not understand multi-line strings, inline tables or dotted keys. So the new text
            # counts only if it parses to the old table plus this key.
            reduce(lambda table, each: table.setdefault(each, {}), above, wanted)[key] = value
            return text if Table.parse(self.file, text.encode()).values == wanted else None
        except (UsageError, AttributeError, TypeError):
            return None


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """Return the line of a TOML text on which the statement that sets a key starts; None if there is none."""
    return _lines(text).get(tuple(keys))


@lru_cache(maxsize=4)
def _lines(text: str) -> Mapping[tuple[str, ...], int]:
    """Return the line of each key by parsing every prefix of the text: a valid prefix ends a statement.
    """
    import tomllib

    lines, found, begin = text.splitlines(keepends=True), dict[tuple[str, ...], int](), 1
    # every prefix, not every line: only the parser knows where a multi-line string or array ends
    for end in range(1, min(len(lines), MAX_LINES) + 1):
        try:
            table = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        for keys in _paths(table):
            found.setdefault(keys, begin)
        begin = end + 1
    return found


def _paths(table: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))


# --- readers of values; a ValueError says what is expected ------------------------------------------------------------


def as_text(value: object) -> str:
    """Read a non-empty text."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text")
    return value


def as_subfolder(value: object) -> str:
    """Read and normalize the path of a folder in the repository; '' for the top."""
    if not isinstance(value, str) or not value.strip() or value.lstrip().startswith(("/", "~")) or "\0" in value:
        raise ValueError(_SUBFOLDER)
    parts = [part for part in value.strip().split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(_SUBFOLDER)
    return "/".join(parts)


_SUBFOLDER = 'a folder of the repository, such as "packages/a" ("." is its top)'


def as_flag(value: object) -> bool:
    """Read true or false, also in the form of a node's attribute."""
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def as_names(value: object) -> tuple[str, ...]:
    """Read a list of names, also in the form of a node's attribute: separated by commas or spaces."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word for word in words):
        raise ValueError("a list of names")
    return tuple(words)


def as_strings(value: object) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise ValueError("a list of strings")
    return tuple(value)


def as_mapping(value: object) -> Mapping[str, str]:
    """Read a table of strings, such as variables."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("a table of texts")
    return dict(value)


def matching(pattern: str, what: str) -> Reader[str]:
    """Return the reader of a text that fully matches the pattern; errors call it `what`."""
    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(what)
        return value

    return read


def one_of(*words: str) -> Reader[str]:
    """Return the reader of one of some words."""
    def read(value: object) -> str:
        if value not in words:
            shown = [word for word in words if word]
            near = nearest(value, shown) if isinstance(value, str) else None
            what = f"one of {', '.join(shown)}" if len(shown) > 1 else f'"{shown[0]}"'
            raise ValueError(what + (f"; did you mean {near}?" if near else ""))
        return str(value)

    return read


def member(words: type[Word]) -> Reader[Word]:
    read = one_of(*words)
    return lambda value: words(read(value))


def number(what: str, low: float, high: float = 1e9, *, above: bool = False) -> Reader[float]:
    return lambda value: float(_bounded(value, (int, float), what, low, high, above))


def whole(low: int, high: int = 10**9, what: str = "a whole number") -> Reader[int]:
    # `from 1` is worded as `above 0`
    return lambda value: int(_bounded(value, (int,), what, low - (low == 1), high, low == 1))


def as_count(value: object) -> int:
    """Read a whole number above 0, also in the form of a node's attribute."""
    if isinstance(value, bool) or not re.fullmatch(r"\s*0*[1-9]\d*\s*", str(value)):
        raise ValueError("a whole number above 0")
    return int(str(value))


def as_amount(value: object) -> float:
    """Read a number above 0, also in the form of a node's attribute: `$0.5`, `3 USD`."""
    try:
        made = float(str(value).strip().lower().removesuffix("usd").strip("$ "))
    except ValueError:
        raise ValueError("a number above 0") from None
    if not 0 < made < 1e9:
        raise ValueError("a number above 0")
    return made


def _bounded(value: object, kinds: tuple[type[float], ...], what: str, low: float, high: float, above: bool) -> float:
    # in Python, True is the number 1
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high or (above and value == low):
        most = (" and at most" if above else " to") + f" {high:.0f}" if high < 1e9 else ""
        raise ValueError(f"{what} {'above' if above else 'from'} {low:g}{most}")
    return value


def or_none(read: Reader[T]) -> Reader[T | None]:
    """Return the reader of a limit that can be switched off."""
    def read_limit(value: object) -> T | None:
        # TOML has no null.
        if value is False or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f'{error}, or "none"') from None

    return read_limit
