"""Again, or give up? Restart intensity as arithmetic (OTP's `supervisor`): times go in, a decision comes out. Pure.

The limits nest: a window inside a life's name (5 restarts in 10 minutes), and a total inside an attempt
(`--max-respawn`). The first restart is at once, then 0.1 s x 2^n, at most 30 s; a healthy stretch empties the window.
"""

from __future__ import annotations

from garrison.light import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Policy:
    """How often a life may be restarted; times in seconds."""

    window: float = 600.0
    intensity: int = 5
    base: float = 0.1
    cap: float = 30.0
    total: int | None = None
    """Deaths allowed in all (an attempt's limit); None: only the window counts, for who serves a whole run."""


@dataclass(frozen=True)
class Death:
    """One death of a name: which life, when on the monotonic clock of which boot, and why."""

    incarnation: int
    monotonic: float
    boot_id: str
    why: str = ""


@dataclass(frozen=True)
class Decision:
    """Restart not before `at` (monotonic seconds), or give up when `at` is None; `why` names the rule that fired."""

    at: float | None
    why: str

    @property
    def park(self) -> bool:
        """Whether the name is given up."""
        return self.at is None


def decide(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy) -> Decision:
    """What follows the last of `deaths` (all of this attempt, in any order); another boot's only count in total."""
    if policy.total is not None and len(deaths) > policy.total:
        return Decision(None, f"{len(deaths)} deaths in this attempt, the limit is {policy.total}")
    recent = recent_deaths(deaths, now, boot_id, policy)
    if len(recent) > policy.intensity:
        return Decision(None, f"{len(recent)} deaths in {policy.window:.0f} s, the limit is {policy.intensity}")
    if len(recent) <= 1:
        return Decision(now, "first restart in the window: at once")
    delay = min(policy.cap, policy.base * 2 ** (len(recent) - 2))
    return Decision(recent[-1] + delay, f"restart {len(recent)} in the window: after {delay:.1f} s")


def recent_deaths(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy) -> list[float]:
    """When those of `deaths` were that the window counts, in order (monotonic seconds)."""
    return sorted(death.monotonic for death in deaths
                  if death.boot_id == boot_id and now - death.monotonic < policy.window)
