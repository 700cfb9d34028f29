"""What a person prefers, kept in `preferences.json` of the home: key → value and how sure we are."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from garrison.delegation.models import Preference
from garrison.errors import NotFound, RecordCorrupt, UsageError
from garrison.records import atomic

MAX_KEPT = 200
MAX_CHARACTERS = 500


class Preferences:
    """The preferences of one home; each change is written whole or not at all."""

    def __init__(self, home: Path) -> None:
        self.path = home / "preferences.json"

    def all(self) -> list[Preference]:
        """All, the surest first."""
        try:
            body = json.loads(self.path.read_bytes())
            found = [Preference(key=key, **value) for key, value in body.items()]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, AttributeError, ValidationError) as error:
            raise RecordCorrupt(self.path, "it does not hold preferences") from error
        return sorted(found, key=lambda one: (-one.confidence, one.key))

    def remember(self, key: str, value: str, confidence: float = 0.9) -> Preference:
        """Keep a preference, in the place of an earlier one of that key."""
        if not key.strip() or len(key) > 80 or len(value) > MAX_CHARACTERS or not 0 <= confidence <= 1:
            raise UsageError(f"a preference has a key of 1 to 80 characters, a value of at most {MAX_CHARACTERS} and a "
                             "confidence from 0 to 1")
        known = {one.key: one for one in self.all()}
        if key not in known and len(known) >= MAX_KEPT:
            raise UsageError(f"{MAX_KEPT} preferences are kept already; forget one first")
        known[key] = Preference(key=key, value=value, confidence=confidence)
        self._write(list(known.values()))
        return known[key]

    def forget(self, key: str) -> None:
        """Drop one; NotFound if it is not kept."""
        kept = self.all()
        if all(one.key != key for one in kept):
            raise NotFound(f"no preference {key!r:.80}; there are {', '.join(one.key for one in kept) or 'none'}")
        self._write([one for one in kept if one.key != key])

    def _write(self, kept: list[Preference]) -> None:
        atomic.make_directory(self.path.parent)
        body = {one.key: {"value": one.value, "confidence": one.confidence} for one in kept}
        atomic.write(self.path, json.dumps(body, ensure_ascii=False, indent=1, sort_keys=True).encode())
