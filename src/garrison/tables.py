"""Tables of settings: the one reader from a table of TOML to a typed record, with one form of error.

    class MergeConfig(Value):
        turn: float = setting(900.0, number("seconds", 1, 86_400))

A record declares its table: the name of a field is the key, its default holds where the key is absent, and its reader
makes the value of what the file has. A reader raises ValueError with what the value should be; the rest of the sentence
is written here, with the file and line, the table and the key:

    config.toml:12: [merge] turn=0 should be seconds from 1 to 86400
    config.toml:12: [merge] trun is not a setting; did you mean turn?

Keys that begin with `x_` are the user's own. tomllib knows no lines, so the line of a key is looked for when it is
asked for.
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
"""Makes a value of what a file has; ValueError says what that should be."""
MAX_LINES = 2000
"""Lines up to which the line of a key is searched for."""
_MAX_SHOWN = 80


class Nested(Value, Generic[T]):
    """Reader of a table within a table, whose errors name the line and the keys of their own."""

    read: Callable[[Table], T]


# --- declaring a table ------------------------------------------------------------------------------------------------


class _Setting(Value):
    """What a field declares about the key that sets it, where a record keeps what makes the field's default."""

    default: object
    read: Reader[Any] | Nested[Any]
    keys: tuple[str, ...] | None = None
    """Keys of the table that it collects; None: the one of its own name."""
    is_secret: bool = False

    def __call__(self) -> object:
        """Return the default."""
        return {} if self.default is dict else self.default


def _declare(setting: _Setting) -> Any:
    return msgspec.field(default_factory=setting)


def setting(default: D, read: Reader[T], *, is_secret: bool = False) -> D | T:
    """Declare a field that the table's key of its name sets; the value of a secret one is never shown."""
    return _declare(_Setting(default, read, is_secret=is_secret))  # type: ignore[no-any-return]


def empty_table(read: Reader[Mapping[str, T]] | Nested[Mapping[str, T]]) -> Mapping[str, T]:
    """Declare a field that the table of its name sets, empty without one."""
    return _declare(_Setting(dict, read))  # type: ignore[no-any-return]


def settings_by_key(keys: Iterable[Word], read: Reader[T]) -> Mapping[Word, T]:
    """Declare a field that contains what the table states for each of `keys`."""
    return _declare(_Setting(dict, read, tuple(keys)))  # type: ignore[no-any-return]


def _settings_of(record: type[Any]) -> Iterator[tuple[str, _Setting]]:
    """Yield the fields of a record that a table sets, in their order."""
    defaults = record.__struct_defaults__
    # As with a function's parameters, the defaults are those of the last fields.
    for name, default in zip(record.__struct_fields__[-len(defaults):] if defaults else (), defaults, strict=True):
        if isinstance(made := getattr(default, "factory", None), _Setting):
            yield name, made


def is_secret(record: type[Any], key: str) -> bool:
    return any(name == key and each.is_secret for name, each in _settings_of(record))


def readers_of(record: type[Any]) -> Mapping[str, Reader[Any] | Nested[Any]]:
    """Return the keys that a record declares, in their order, with the reader of each."""
    return {key: each.read for name, each in _settings_of(record) for key in each.keys or (name,)}


# --- reading one ------------------------------------------------------------------------------------------------------


class Table(Value):
    """A table as its file has it, or the attributes of a node; `file` is how errors name where it is."""

    file: str
    values: Any
    keys: tuple[str, ...] = ()
    """Keys that lead to it; none for the file itself."""
    text: str = ""
    """The whole file."""

    @classmethod
    def parse(cls, file: object, data: bytes) -> Table:
        """Read a TOML file; UsageError if it is none."""
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
        """Return a table in it, an empty one if it has none of that name."""
        values = self.values
        for key in keys:
            values = values.get(key, {}) if isinstance(values, Mapping) else {}
        return Table(self.file, values, (*self.keys, *keys), self.text)

    def place(self, *keys: str) -> str:
        """Return the file, and the line on which the key that `keys` lead to is set, else that of the table."""
        path = (*self.keys, *keys)
        line = next((found for end in range(len(path), 0, -1) if (found := line_of(self.text, path[:end]))), None)
        return f"{self.file}:{line}" if line else self.file

    def error(self, text: str, *keys: str) -> UsageError:
        """Return an error about a key, or the whole table: its place, and what is wrong."""
        return UsageError(f"{self.place(*keys)}: {self.name} {text}" if self.keys else f"{self.place(*keys)}: {text}")

    def require(self, known: Collection[str]) -> Mapping[str, object]:
        """Return its values; UsageError if it is not a table."""
        if not isinstance(self.values, Mapping):
            what = f"{'.'.join(self.keys)} " if self.keys else ""
            raise UsageError(f"{self.place()}: {what}should be a table with {', '.join(known)}")
        return self.values

    def unknown(self, known: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """Yield (what is wrong, the key that was meant) for each key that is neither known nor the user's own."""
        for key in self.require(known):
            if key not in known and not str(key).startswith("x_"):
                near = nearest(str(key), known)
                fix = f"did you mean {near}?" if near else f"there are {', '.join(known)}; your own keys begin " \
                    "with x_"
                what = f"{key} is not a setting" if self.keys else f"garrison reads no table or key {key}"
                yield str(self.error(f"{what}; {fix}", str(key))), near

    def value(self, key: str, read: Reader[T] | Nested[T], default: D, *, is_secret: bool = False) -> D | T:
        """Return the value of one key; UsageError for a wrong one, which it shows unless it may hold a secret."""
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
        """Return the record of this table; UsageError for a wrong value, and for a key that nobody knows.

        Args:
            base: what applies to the keys that it does not state; the record's defaults otherwise.
            others: keys that somebody else reads; None: there may be any.
            names: key of the record → key of this table, where it has another.
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
        """Return the whole file with a key set to a text, and all else as it is; None if its form does not allow it."""
        *above, key = keys
        line, lines = f'{key} = "{value}"', self.text.splitlines()
        # TOML allows blanks and either kind of quotes in the keys of a header.
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
            # The edit was made by lines, which know no multi-line strings, inline tables or dotted keys. The new text
            # counts only if it means exactly the old table with this one key.
            reduce(lambda table, each: table.setdefault(each, {}), above, wanted)[key] = value
            return text if Table.parse(self.file, text.encode()).values == wanted else None
        except (UsageError, AttributeError, TypeError):
            return None


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """Return the line of a TOML text on which the statement begins that sets a key; None if none does."""
    return _lines(text).get(tuple(keys))


@lru_cache(maxsize=4)
def _lines(text: str) -> Mapping[tuple[str, ...], int]:
    """Return the line of each key: the text is parsed up to each line in turn, a part that is whole ends a statement.
    """
    import tomllib

    lines, found, begin = text.splitlines(keepends=True), dict[tuple[str, ...], int](), 1
    # Every prefix is parsed, not every line: only the parser knows where a multi-line string or array ends.
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
    """Read a text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text")
    return value


def as_subfolder(value: object) -> str:
    """Read a path of a folder below the top of the repository, without what says nothing in it; '' for the top."""
    if not isinstance(value, str) or not value.strip() or value.lstrip().startswith(("/", "~")) or "\0" in value:
        raise ValueError(_SUBFOLDER)
    parts = [part for part in value.strip().split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(_SUBFOLDER)
    return "/".join(parts)


_SUBFOLDER = 'a folder of the repository, such as "packages/a" ("." is its top)'


def as_flag(value: object) -> bool:
    """Read true or false, also as a node's attribute has it."""
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def as_names(value: object) -> tuple[str, ...]:
    """Read a list of names, also as a node's attribute has it: separated by commas or blanks."""
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
    """Read a table of texts, such as variables."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("a table of texts")
    return dict(value)


def matching(pattern: str, what: str) -> Reader[str]:
    """Return the reader of a text that is `what`, which all of the pattern is."""
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
    # `from 1` is said as `above 0`.
    return lambda value: int(_bounded(value, (int,), what, low - (low == 1), high, low == 1))


def as_count(value: object) -> int:
    """Read a whole number above 0, also as a node's attribute has it."""
    if isinstance(value, bool) or not re.fullmatch(r"\s*0*[1-9]\d*\s*", str(value)):
        raise ValueError("a whole number above 0")
    return int(str(value))


def as_amount(value: object) -> float:
    """Read a number above 0, also as a node's attribute has it: `$0.5`, `3 USD`."""
    try:
        made = float(str(value).strip().lower().removesuffix("usd").strip("$ "))
    except ValueError:
        raise ValueError("a number above 0") from None
    if not 0 < made < 1e9:
        raise ValueError("a number above 0")
    return made


def _bounded(value: object, kinds: tuple[type[float], ...], what: str, low: float, high: float, above: bool) -> float:
    # To Python, true is the number 1.
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
