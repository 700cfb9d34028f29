"""A parked name's way back: closed → parked (the window is used up) → probing (one life, half-open) → closed, or parked
again for twice as long. Pure: folded from the supervisor's own journal, so that its successor continues the same.

Journal kinds: `park` {full, incarnation, why, monotonic, boot_id, probe_at} · `spawn` {…, probe: true, monotonic,
boot_id} · `heal` {full, incarnation}. A person's `unpark` and `--resume` close the circuit and empty the window, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from garrison.supervise.restart import Policy


@dataclass(frozen=True)
class Circuit:
    """Of one name; times are monotonic seconds of `boot_id`."""

    state: str = "closed"
    """closed, parked or probing."""
    why: str = ""
    since: float = 0.0
    """When it was parked, or its probe begun."""
    boot_id: str = ""
    parks: int = 0
    """Parks running, none of whose probes stayed healthy."""
    life: int = 0
    """The incarnation that was parked last."""
    probe: int = 0
    """The incarnation of the probe."""
    forgiven: int = 0
    """Deaths of lives up to this one are outside the window."""
    probe_at: str = ""
    """When the probe is due, for people (UTC)."""

    @property
    def parked(self) -> bool:
        """Whether nobody is started before the probe is due."""
        return self.state == "parked"

    def due(self, boot_id: str, policy: Policy) -> float:
        """When the probe of a parked name is due (monotonic); after a reboot at once."""
        return self.since + policy.cool_down(self.parks) if boot_id == self.boot_id else 0.0

    def healthy_at(self, policy: Policy) -> float:
        """When a living probe has been healthy for long enough (monotonic)."""
        return self.since + policy.healthy


CLOSED = Circuit()


def apply_event(circuit: Circuit, kind: str, data: Mapping[str, Any]) -> Circuit:
    """The circuit after one journal record about its name; records of other kinds leave it as it is."""
    if kind == "park":
        return replace(circuit, state="parked", why=str(data.get("why", "")), since=float(data.get("monotonic", 0.0)),
                       boot_id=str(data.get("boot_id", "")), parks=circuit.parks + 1, probe=0,
                       life=int(data.get("incarnation", 0)), probe_at=str(data.get("probe_at", "")))
    if kind == "spawn" and data.get("probe"):
        return replace(circuit, state="probing", since=float(data["monotonic"]), boot_id=str(data["boot_id"]),
                       probe=int(data["incarnation"]), probe_at="")
    if kind == "heal":
        return Circuit(forgiven=max(circuit.forgiven, int(data["incarnation"]) - 1))
    return circuit


def reset_circuit(circuit: Circuit, incarnation: int) -> Circuit:
    """The circuit after a person let the name go on, whose last life was `incarnation`."""
    return Circuit(forgiven=max(circuit.forgiven, circuit.life, circuit.probe, incarnation))
