"""Markers: a hidden line in a body by which garrison finds again what it wrote. Pure."""

from __future__ import annotations

import re

_BEGIN = "<!-- garrison:"
_ALLOWED = re.compile(r"[A-Za-z0-9_./@:-]{1,200}")


def make_marker(*parts: str) -> str:
    """Return the marker of an object by names that identify it, such as run, kind and attempt.

    Raises:
        ValueError: a part is empty or has characters that could end the comment.
    """
    name = ":".join(parts)
    if not all(parts) or not _ALLOWED.fullmatch(name):
        raise ValueError(f"not a marker: {name!r}")
    # two hyphens end a comment for some Markdown parsers, and a run's name may contain them
    return f"{_BEGIN}{name.replace('-', '%2D') if '--' in name else name} -->"


def attach(body: str, marker: str) -> str:
    return body if has_marker(body, marker) else f"{body.rstrip()}\n\n{marker}"


def is_marked(body: str) -> bool:
    """Return whether a text has any marker: then garrison wrote it, if its author is the token's user."""
    return any(map(_is_marker, body.splitlines()))


def without_marker(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not _is_marker(line)).strip()


def _is_marker(line: str) -> bool:
    return line.strip().startswith(_BEGIN)


def has_marker(body: str, marker: str) -> bool:
    """Return whether a line of `body` is the marker. Quoted in a reply it does not count."""
    return any(line.strip() == marker for line in body.splitlines())
