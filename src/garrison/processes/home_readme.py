"""README.md of a home: what every file there is, written when a run is created."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from garrison.config import checkout
from garrison.records import atomic

NAME = "README.md"


def write_readme(home: Path) -> None:
    """Write this release's page into a home, unless it is there already."""
    text = readme_text().encode()
    if atomic.read(home / NAME) != text:
        atomic.write(home / NAME, text, durable=False)


def readme_text() -> str:
    """Return the page: the checkout's, else the installed package's."""
    source = checkout()
    page = source / "state" / NAME if source is not None else resources.files("garrison") / "state" / NAME
    return page.read_text(encoding="utf-8")
