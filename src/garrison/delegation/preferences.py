"""Preferences of a person, in `preferences.json` of the home: key → value and confidence."""

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
    """Preferences of one home; each change is written atomically."""

    def __init__(self, home: Path) -> None:
        self.path = home / "preferences.json"

    def all(self) -> list[Preference]:
        """Return all preferences, the most certain first."""
        try:
            body = json.loads(self.path.read_bytes())
            preferences = [Preference(key=key, **value) for key, value in body.items()]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, AttributeError, ValidationError) as error:
            raise RecordCorrupt(self.path, "not a preferences file") from error
        return sorted(preferences, key=lambda preference: (-preference.confidence, preference.key))

    def remember(self, key: str, value: str, confidence: float = 0.9) -> Preference:
        """Store a preference, replacing an earlier one with that key."""
        if not key.strip() or len(key) > 80 or len(value) > MAX_CHARACTERS or not 0 <= confidence <= 1:
            raise UsageError(f"a preference has a key of 1 to 80 characters, a value of at most {MAX_CHARACTERS} and a "
                             "confidence from 0 to 1")
        stored = {preference.key: preference for preference in self.all()}
        if key not in stored and len(stored) >= MAX_KEPT:
            raise UsageError(f"{MAX_KEPT} preferences are stored, which is the limit; forget one first")
        stored[key] = Preference(key=key, value=value, confidence=confidence)
        self._write(list(stored.values()))
        return stored[key]

    def forget(self, key: str) -> None:
        """Remove a preference; NotFound if there is none with that key."""
        stored = {preference.key: preference for preference in self.all()}
        if key not in stored:
            raise NotFound(f"no preference {key!r:.80}; stored: {', '.join(stored) or 'none'}")
        self._write([preference for preference in stored.values() if preference.key != key])

    def _write(self, preferences: list[Preference]) -> None:
        atomic.make_directory(self.path.parent)
        body = {preference.key: {"value": preference.value, "confidence": preference.confidence}
                for preference in preferences}
        atomic.write(self.path, json.dumps(body, ensure_ascii=False, indent=1, sort_keys=True).encode())
