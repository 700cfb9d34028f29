"""Trust tiers: what a session may do, from the shipped file or the caller's. Pure except for reading the file."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

from garrison.errors import UsageError
from garrison.frozen import frozen


@frozen
class Tier:
    """One trust tier; see trust.toml for the fields."""

    name: str
    tool_dispatch: bool = False
    tools: tuple[str, ...] = ()
    heartbeat: float = 0.0
    commands: bool = False

    def allows(self, tool: str) -> bool:
        """Return whether a tool may be called."""
        return self.tool_dispatch and ("*" in self.tools or tool in self.tools)


def read_tiers(path: Path | None = None) -> dict[str, Tier]:
    """Return the tiers of a file, by default the shipped ones; UsageError if it is invalid."""
    where = str(path or "trust.toml")
    text = path.read_text() if path else resources.files("garrison.session").joinpath("trust.toml").read_text()
    try:
        body = tomllib.loads(text)
        return {name: Tier(name, bool(tier.get("tool_dispatch", False)), tuple(tier.get("tools", ())),
                           float(tier.get("heartbeat", 0)), bool(tier.get("commands", False)))
                for name, tier in body.items()}
    except (tomllib.TOMLDecodeError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: {' '.join(str(error).split())}") from error


def require_working_tier(name: str, tiers: dict[str, Tier]) -> Tier:
    """Return the tier of that name for a session with a task; UsageError for one that could not report on it."""
    tier = find_tier(name, tiers)
    if not tier.tool_dispatch:
        usable = ", ".join(other.name for other in tiers.values() if other.tool_dispatch)
        raise UsageError(f"a session of trust tier {name} has no tools and could not report; use one of {usable}")
    return tier


def find_tier(name: str, tiers: dict[str, Tier]) -> Tier:
    """Return the tier of that name; UsageError with the existing names."""
    if name not in tiers:
        raise UsageError(f"no trust tier {name!r:.60}; available: {', '.join(tiers)}")
    return tiers[name]
