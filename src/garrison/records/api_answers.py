"""API answers: the last failure of a model's API in an attempt, as the run's proxy saw it.

The proxy writes a failed answer to `network/answer.json` in the attempt's folder, and removes it once a call succeeds.
So the file says why the attempt's agent cannot continue, whatever its program reports: status, the API's name of the
error, and the time in its headers. No agent can write there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from garrison.records.json_io import read_json, write_json
from garrison.records.record import from_data
from garrison.values import Value, asdict

FILE = "answer.json"
"""File of the proxy's folder of an attempt."""
NETWORK = "network"
"""The proxy's folder in an attempt's folder."""
_MAX_NAME, _MAX_MESSAGE = 100, 1000
_MILLISECONDS, _SECONDS = "retry-after-ms", "retry-after"
_UNIFIED = "anthropic-ratelimit-unified-reset"
_COUNTED = tuple(f"{prefix}{{}}{what}" for prefix, what in (
    ("anthropic-ratelimit-requests-", ""), ("anthropic-ratelimit-tokens-", ""),
    ("anthropic-ratelimit-input-tokens-", ""), ("anthropic-ratelimit-output-tokens-", ""),
    ("x-ratelimit-", "-requests"), ("x-ratelimit-", "-tokens")))
"""Names of the headers that count what is left, with `remaining` or `reset` in the gap."""
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[smhd]|$)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class ApiAnswer(Value):
    """The last of an API's consecutive failures."""

    at: float
    """Seconds since 1970."""
    since: float
    """Time of the first of them."""
    count: int
    status: int | None
    """None: the API was not reachable."""
    error: str = ""
    """The API's name of the error, '' for none."""
    message: str = ""
    resets_at: float | None = None
    """When it may be called again by its headers, in seconds since 1970; None if they name no time."""

    @property
    def words(self) -> str:
        return f"{self.error}: {self.message}" if self.error and self.message else self.error or self.message

    def describe(self) -> str:
        return f"{self.status} {self.words}".strip() if self.status is not None else self.words


def record_failure(folder: Path, now: float, status: int | None, headers: Mapping[str, str], error: tuple[str, str],
                   ) -> None:
    """Record a failed answer in the proxy's folder of an attempt; `error` is its name and message."""
    before = read_answer(folder)
    answer = ApiAnswer(now, before.since if before else now, before.count + 1 if before else 1, status,
                       error[0][:_MAX_NAME], error[1][:_MAX_MESSAGE], read_reset(headers, now))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(folder / FILE, asdict(answer))


def record_success(folder: Path) -> None:
    """Record that a call has succeeded."""
    (folder / FILE).unlink(missing_ok=True)


def read_answer(folder: Path, since: float = 0.0) -> ApiAnswer | None:
    """Return the last failure in the proxy's folder, if it is no older than `since`."""
    try:
        answer = from_data(ApiAnswer, read_json(folder / FILE) or {})
    except ValueError:
        return None
    return answer if answer.at >= since else None


# ---- parse an answer, pure


def read_error(body: object) -> tuple[str, str]:
    """Return the name and the message of the error in an API's answer, '' for a missing one."""
    if isinstance(body, list):  # Gemini streams an array
        body = next(iter(body), None)
    table = body if isinstance(body, dict) else {}
    response = table.get("response")
    error = table.get("error") or (response.get("error") if isinstance(response, dict) else None)
    if isinstance(error, str):
        return "", error
    if not isinstance(error, dict):
        return "", str(table.get("message") or table.get("detail") or "")
    names = (error.get("code"), error.get("status"), error.get("type"))
    return next((name for name in names if isinstance(name, str) and name), ""), str(error.get("message") or "")


def read_error_text(text: bytes) -> tuple[str, str]:
    """Return the name and the message of the error in a body of any type."""
    try:
        found = read_error(json.loads(text))
    except (ValueError, RecursionError):
        found = ("", "")
    return found if any(found) else ("", " ".join(text[:_MAX_MESSAGE].decode(errors="replace").split()))


def read_reset(headers: Mapping[str, str], now: float) -> float | None:
    """Return when an API may be called again by the headers of its answer, in seconds since 1970; None for no time."""
    for name, scale in ((_MILLISECONDS, 0.001), (_SECONDS, 1.0)):
        if (seconds := _number(headers.get(name, ""))) is not None:
            return now + max(0.0, seconds) * scale
    if (moment := _date(headers.get(_SECONDS, ""))) is not None:
        return moment
    if (epoch := _number(headers.get(_UNIFIED, ""))) is not None:
        return epoch
    used_up = [headers[name.format("reset")] for name in _COUNTED
               if _number(headers.get(name.format("remaining"), "")) == 0 and name.format("reset") in headers]
    return max((moment for each in used_up if (moment := _moment(each, now)) is not None), default=None)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str) -> float | None:
    from email.utils import parsedate_to_datetime  # few answers name a date

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _moment(text: str, now: float) -> float | None:
    """Return the time of a header: an ISO date, or a duration such as `6m0s`."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    parts = _PART.findall(text)
    if parts and _PART.sub("", text).strip() == "":
        return now + sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
    return None
