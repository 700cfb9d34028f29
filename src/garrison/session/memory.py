"""Memory of a session: what was said and noted, recalled by common words, and kept in a file if it has one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from garrison.records import atomic

MAX_ENTRIES = 1_000
MAX_ENTRY = 2_000
"""Characters of one entry."""
RECALLED = 5
"""Entries that are recalled."""
_WORD = re.compile(r"\w{4,}")


class Memory:
    """Entries of one session, oldest first; `recall` and `update` are adapters."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        raw = atomic.read(path) if path is not None else None
        self.entries: list[str] = _parse(raw) if raw else []

    def recall(self, _agent: str, query: str) -> list[str]:
        """Return the entries that have the most words in common with the query, rare words first; oldest first."""
        wanted = _words(query)
        words = [_words(entry) for entry in self.entries]
        count = Counter(word for entry in words for word in entry)
        scores = [(sum(1 / count[word] for word in entry & wanted), index) for index, entry in enumerate(words)]
        best = sorted((score, index) for score, index in scores if score)[-RECALLED:]
        return [self.entries[index] for index in sorted(index for _, index in best)]

    def update(self, _agent: str, turn: Mapping[str, Any]) -> None:
        """Remember a turn and its notes; a turn that is recorded again after a crash, and a note that the model
        repeats, count once.
        """
        said = f"{_text(turn['input'])} → {turn.get('response', '')}" if turn.get("input") else ""
        notes = dict.fromkeys(text[:MAX_ENTRY] for text in map(_text, turn.get("notes") or []) if text)
        recent = self.entries[-2 * (len(notes) + 1):]
        added = [*([said[:MAX_ENTRY]] if said and said[:MAX_ENTRY] not in recent else []),
                 *(note for note in notes if note not in self.entries)]
        if not added:
            return
        self.entries = [*self.entries, *added][-MAX_ENTRIES:]
        if self._path is not None:
            atomic.make_directory(self._path.parent)
            lines = "".join(f"{json.dumps(entry)}\n" for entry in self.entries)
            atomic.write(self._path, lines.encode(), durable=False)


def _parse(raw: bytes) -> list[str]:
    try:
        return [str(json.loads(line)) for line in raw.splitlines()][-MAX_ENTRIES:]
    except ValueError:  # memories help, but no turn may fail for them
        return []


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
