"""Buttons of a message: a token that gives one answer to one question, once.

A message of ntfy has a button for each answer (`buttons = true`); pressing it sends its token to the server of the
page, which answers as `garrison answer` does. Anyone who sees the message, including the ntfy server, can press it: so
a token gives only that answer, works once and for a day at most, and irreversible answers have none. The tokens of a
question are stored as hashes in one file, `web/buttons/ID.json`; the first press removes it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING

from garrison.errors import NotFound, RecordError
from garrison.records import atomic, record
from garrison.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIFE_SECONDS = 86_400.0
"""How long a button works, unless its question is settled earlier."""
MOST = 3
"""Buttons that ntfy shows in a message; a question with more answers gets none."""
_TOKEN = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")


class Buttons(Record):
    """The buttons of one question. `hashes` are SHA-256 of the tokens, by answer; `expires` in seconds since 1970."""

    run: str
    node: str
    question: str
    hashes: dict[str, str]
    expires: float


def make(home: Path, run: str, node: str, question: str, answers: Sequence[str], until: float) -> dict[str, str]:
    """Return a token for each answer to a question. `until`: when the question ends, in seconds since 1970."""
    folder = atomic.make_directory(home / "web/buttons")
    name = secrets.token_hex(8)
    tokens = {answer: f"{name}.{secrets.token_urlsafe(32)}" for answer in answers}
    atomic.write(folder / f"{name}.json", record.encode(Buttons(
        run, node, question, {answer: _hash(token) for answer, token in tokens.items()}, until)))
    return tokens


def press(home: Path, token: str, now: float) -> tuple[Buttons, str]:
    """Use up a token: return its question and its answer. NotFound if it is invalid, used up or expired."""
    match = _TOKEN.fullmatch(token)
    found = _read(home, match[1]) if match else None
    answer = next((each for each, hashed in found.hashes.items() if hmac.compare_digest(hashed, _hash(token))),
                  None) if found is not None else None
    if match is None or found is None or answer is None:
        raise NotFound("this button was already pressed, or its question is settled; open the page to see it")
    try:  # only one of two simultaneous presses removes the file; a kill after that answers nothing
        _path(home, match[1]).unlink()  # this also removes the other answers of the question
    except FileNotFoundError:
        raise NotFound("this button was already pressed, or its question is settled; open the page to see it") from None
    if now >= found.expires:
        raise NotFound("this button has expired; open the page to answer")
    return found, answer


def sweep(home: Path, now: float) -> None:
    """Remove the buttons that have expired."""
    for name in atomic.list_names(home / "web/buttons"):
        buttons = _read(home, name.removesuffix(".json"))
        if buttons is not None and now >= buttons.expires:
            _path(home, name.removesuffix(".json")).unlink(missing_ok=True)


def _read(home: Path, name: str) -> Buttons | None:
    try:
        data = atomic.read(_path(home, name))
        return None if data is None else record.decode(Buttons, data, _path(home, name))
    except RecordError:
        return None


def _path(home: Path, name: str) -> Path:
    return home / "web/buttons" / f"{name}.json"


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
