"""Trust tiers: what a session may do, from the shipped file or the caller's. Pure except for reading the file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from garrison.errors import UsageError
from garrison.tables import Table, as_flag, as_strings, number, setting


@dataclass(frozen=True)
class Tier:
    """One trust tier; see trust.toml for the fields."""

    name: str
    tool_dispatch: bool = setting(False, as_flag)
    tools: tuple[str, ...] = setting((), as_strings)
    heartbeat: float = setting(0.0, number("seconds", 0))
    commands: bool = setting(False, as_flag)

    def allows(self, tool: str) -> bool:
        return self.tool_dispatch and ("*" in self.tools or tool in self.tools)


def read_tiers(path: Path | None = None) -> dict[str, Tier]:
    """Return the tiers of a file, by default the shipped ones; UsageError if it is invalid."""
    shipped = resources.files("garrison.session").joinpath("trust.toml")
    file = Table.parse(path or "trust.toml", (path or shipped).read_bytes())
    return {name: file.below(name).read(Tier, Tier(name)) for name in file.values}


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
