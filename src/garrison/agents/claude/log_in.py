"""Log-in of the Claude CLI: the files in its configuration folder, its use from outside, and copying it back to the
home.

With `login = "proxy"` the run's proxy adds the token to what the CLI sends, and the CLI has none. Only the CLI itself
renews it: it is run outside, under the home's lock, shortly before the token expires. With `login = "file"` it works
with a copy. Once it has renewed its tokens there, the home's may be invalid, so they are copied back; but the copy is
where an agent can write. So nothing else in it counts: a copy that is empty, lacks a field, is not newer, or names
another account is ignored.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from garrison.agents.claude.settings import KEYS, TOKEN
from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.system import untrusted

FILE = ".credentials.json"
_STATE = ".claude.json"
"""The CLI's own settings: the account, and the key of a log-in to the Console."""
_TABLE = "claudeAiOauth"
_TOKENS = frozenset({"accessToken", "refreshToken", "expiresAt", "refreshTokenExpiresAt"})
"""Fields that a renewal changes; all others stay unchanged."""
_SOON = 240.0
"""Seconds before its expiry when a token is renewed; the CLI does so from 300 seconds before."""
_RENEWAL = ("auth", "status")
"""Arguments that make the CLI renew an expiring token, without a request to a model."""
_RENEWAL_TIMEOUT, _RENEWAL_PAUSE = 15.0, 60.0
_MAX_FILE, _MAX_STATE = 1 << 20, 1 << 23


def has_log_in(folder: Path) -> bool:
    """Return whether a configuration folder has a log-in with a token, or a key of the Console."""
    return bool(_table(_read(folder, FILE, _MAX_FILE)).get("accessToken")) or \
        bool(_read(folder, _STATE, _MAX_STATE).get("primaryApiKey"))


@dataclass(slots=True)
class OutsideLogIn:
    """The log-in of a configuration folder, for use outside a sandbox."""

    folder: Path
    cli: Sequence[str]
    """The CLI that renews it, and its environment."""
    environment: Mapping[str, str]
    _tried_at: float = -math.inf

    def variables(self, now: float) -> dict[str, str]:
        """Return the variable with the token or the Console's key that the CLI itself would use; empty without either.
        `now` is in seconds since 1970."""
        table = self._read_table()
        if not table:
            key = _read(self.folder, _STATE, _MAX_STATE).get("primaryApiKey")
            return {KEYS[0]: key} if key and isinstance(key, str) else {}
        if table.get("refreshToken") and _seconds_left(table, now) < _SOON and now - self._tried_at > _RENEWAL_PAUSE:
            # Whether it succeeds or not: the network asks every two seconds, and would start the CLI each time.
            self._tried_at = now
            self._renew(now)
            table = self._read_table()
        token = table.get("accessToken")
        return {TOKEN: token} if token and isinstance(token, str) else {}

    def has_expired(self, now: float) -> bool:
        return _seconds_left(self._read_table(), now) <= 0

    def _read_table(self) -> Mapping[str, object]:
        return _table(_read(self.folder, FILE, _MAX_FILE))

    def _renew(self, now: float) -> None:
        with suppress(OSError, GarrisonError, subprocess.SubprocessError), \
                atomic.locked(self.folder / f"{FILE}.lock", _RENEWAL_TIMEOUT):
            if _seconds_left(self._read_table(), now) < _SOON:  # no other process has done it
                subprocess.run([*self.cli, *_RENEWAL], env=dict(self.environment), cwd=self.folder, check=False,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               timeout=_RENEWAL_TIMEOUT)


def _seconds_left(table: Mapping[str, object], now: float) -> float:
    """Return how long a token is valid: one without expiry, as from `claude setup-token`, forever."""
    expires = table.get("expiresAt")
    if expires is None:
        return math.inf
    return expires / 1000 - now if isinstance(expires, (int, float)) else 0.0


def copy(home: Path, target: Path) -> None:
    """Copy the log-in of the home's configuration folder to an attempt's, if it exists and is valid."""
    with suppress(OSError, ValueError, GarrisonError):
        data = untrusted.read(home, FILE, _MAX_FILE)
        if data is not None and isinstance(json.loads(data), dict):
            atomic.write(target / FILE, data)


def take_back(copied: Path, home: Path) -> str:
    """Copy the tokens of an attempt's copy back to the home's log-in if they are a renewal of it.

    Returns:
        Why they are not copied back; '' if it was, or says what the home has.
    """
    with suppress(OSError, GarrisonError), atomic.locked(home / f"{FILE}.lock"):
        # Both under the lock: of several agents that end at once, each compares with the result of the previous one.
        before, after = _read(home, FILE, _MAX_FILE), _read(copied, FILE, _MAX_FILE)
        if before == after or not before:
            return ""
        why = objection(_table(before), _table(after)) or _other_account(copied, home)
        if not why:
            renewed = {name: value for name, value in _table(after).items() if name in _TOKENS}
            atomic.write(home / FILE, json.dumps({**before, _TABLE: {**_table(before), **renewed}}).encode())
        return why
    return ""


def objection(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return why the second of two tables of tokens is not a renewal of the first; '' if it is one. Pure."""
    if not after:
        return "it is empty"
    missing = sorted(name for name in before if not after.get(name) and before[name])
    if missing:
        return f"it lacks {', '.join(missing)}"
    if any(after[name] != before[name] for name in before.keys() - _TOKENS):
        return "it is of another account"
    if {name: after.get(name) for name in _TOKENS} == {name: before.get(name) for name in _TOKENS}:
        return ""
    if not (isinstance(after.get("expiresAt"), (int, float)) and after["expiresAt"] > (before.get("expiresAt") or 0)):
        return "it is older than the home's"
    kinds_differ = any(type(after[name]) is not type(before[name]) for name in before if name in _TOKENS)
    return "its fields are of another kind" if kinds_differ else ""


def _other_account(copied: Path, home: Path) -> str:
    accounts = [_read(folder, _STATE, _MAX_STATE).get("oauthAccount") for folder in (home, copied)]
    names = [each.get("accountUuid") if isinstance(each, dict) else None for each in accounts]
    return "it is of another account" if all(names) and names[0] != names[1] else ""


def _table(body: Mapping[str, object]) -> Mapping[str, object]:
    table = body.get(_TABLE)
    return table if isinstance(table, dict) else {}


def _read(folder: Path, name: str, limit: int) -> dict[str, object]:
    """Return a file of a configuration folder, where an agent may write; empty if it is invalid."""
    with suppress(OSError, ValueError, RecursionError, GarrisonError):
        data = untrusted.read(folder, name, limit)
        body = json.loads(data) if data is not None else None
        return body if isinstance(body, dict) else {}
    return {}
