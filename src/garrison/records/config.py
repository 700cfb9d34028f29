"""The home's config.toml: read in one place; what a table of it means is said by the room that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import UsageError
from garrison.records import atomic

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


def config_path(home: Path) -> Path:
    """Where it lies."""
    return home / "config.toml"


def read_config(home: Path) -> dict[str, Any]:
    """Its tables, {} if there is none; UsageError if it is no TOML."""
    import tomllib  # late: the light doors ask for no configuration

    path = config_path(home)
    text = atomic.read(path)
    try:
        return tomllib.loads(text.decode()) if text else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def words_of(where: str, key: str, words: Any) -> tuple[str, ...]:
    """A list of strings; UsageError, naming table (`where`) and key, if it is none. Pure."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{where}: {key} should be a list of strings")
    return tuple(words)
