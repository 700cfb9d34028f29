"""Circuit breaker: park a name whose restart window is used up, and bring it back through a probe. Pure.

The states are closed → parked → probing (half-open: one incarnation) → closed, or parked again for twice as long. They
are replayed from the supervisor's own journal (`park`, `spawn` of a probe, `heal`), so that its successor continues
with the same state. A person's `unpark` and `--resume` close the circuit too, and empty the window.
"""

from __future__ import annotations

from garrison.records.events import ChildParked, ChildSpawned, ProbeHealthy
from garrison.values import Value, replace


class Circuit(Value):
    """Circuit breaker of one name; times are monotonic seconds of the boot `boot_id`."""

    state: str = "closed"
    """closed, parked or probing."""
    why: str = ""
    since: float = 0.0
    """When it was parked, or its probe started."""
    boot_id: str = ""
    parks: int = 0
    """Consecutive parks without a probe that stayed healthy."""
    life: int = 0
    """Incarnation that was parked last (the key in journals and snapshots is `life`)."""
    probe: int = 0
    """Incarnation of the probe."""
    forgiven: int = 0
    """Deaths of incarnations up to this one are outside the window."""
    probe_at: str = ""
    """When the probe is due (UTC), for display."""

    @property
    def parked(self) -> bool:
        return self.state == "parked"


CLOSED = Circuit()


def apply_event(circuit: Circuit, event: ChildParked | ChildSpawned | ProbeHealthy) -> Circuit:
    """Return the circuit after one journal record about its name."""
    match event:
        case ChildParked():
            return replace(circuit, state="parked", why=event.why, since=event.monotonic, boot_id=event.boot_id,
                           parks=circuit.parks + 1, probe=0, life=event.incarnation, probe_at=event.probe_at)
        case ChildSpawned() if event.probe:
            return replace(circuit, state="probing", since=event.monotonic, boot_id=event.boot_id,
                           probe=event.incarnation, probe_at="")
        case ProbeHealthy():
            return Circuit(forgiven=max(circuit.forgiven, event.incarnation - 1))
    return circuit


def reset_circuit(circuit: Circuit, incarnation: int) -> Circuit:
    return Circuit(forgiven=max(circuit.forgiven, circuit.life, circuit.probe, incarnation))
