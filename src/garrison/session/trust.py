"""Trust tiers: what a session may do, from the shipped file or one of the caller's. Pure but for reading it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from garrison.errors import UsageError


@dataclass(frozen=True)
class Tier:
    """One tier; see trust.toml."""

    name: str
    tool_dispatch: bool = False
    tools: tuple[str, ...] = ()
    heartbeat: float = 0.0
    commands: bool = False

    def allows(self, tool: str) -> bool:
        """Whether a tool may be called."""
        return self.tool_dispatch and ("*" in self.tools or tool in self.tools)


def read_tiers(path: Path | None = None) -> dict[str, Tier]:
    """The tiers of a file, else the shipped ones; UsageError if it cannot be meant."""
    where = str(path or "trust.toml")
    text = path.read_text() if path else resources.files("garrison.session").joinpath("trust.toml").read_text()
    try:
        body = tomllib.loads(text)
        return {name: Tier(name, bool(one.get("tool_dispatch", False)), tuple(one.get("tools", ())),
                           float(one.get("heartbeat", 0)), bool(one.get("commands", False)))
                for name, one in body.items()}
    except (tomllib.TOMLDecodeError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: {' '.join(str(error).split())}") from error


def working_tier(name: str, tiers: dict[str, Tier]) -> Tier:
    """The tier of that name for a session that has a task; UsageError for one that could not even report on it."""
    found = tier_of(name, tiers)
    if not found.tool_dispatch:
        able = ", ".join(one.name for one in tiers.values() if one.tool_dispatch)
        raise UsageError(f"a session of trust tier {name} has no tools, and could not report; use one of {able}")
    return found


def tier_of(name: str, tiers: dict[str, Tier]) -> Tier:
    """The tier of that name; UsageError with the names there are."""
    if name not in tiers:
        raise UsageError(f"no trust tier {name!r:.60}; there are {', '.join(tiers)}")
    return tiers[name]
