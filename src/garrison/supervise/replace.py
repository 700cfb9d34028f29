"""Replace: the only way an incarnation ends by force; one found dead goes through it too.

Fence (the record says `crashed`, with verdict and evidence), then TERM, then KILL: the process, its descendants that
carry no other incarnation's marker, and all processes with its own marker, until none is left. Only then may a
successor start: a dead process's shell or tools may live on and write beside it. A process that hangs is killed without
TERM.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from garrison.errors import Fenced
from garrison.records.identity import ALIVE, Identity, mark_ended
from garrison.records.names import format_marker
from garrison.supervise.restart import CRASH, HUNG, REBOOT
from garrison.system.processes import ProcessId

if TYPE_CHECKING:
    from typing import Any

    from garrison.supervise.observer import Observer
    from garrison.supervise.verdict import Observation


def fence(observer: Observer, judged: Identity, reason: str, kind: str = CRASH,
          signs: dict[str, Any] | None = None, seen: Observation | None = None) -> Identity:
    """Write `crashed` over an incarnation, with the evidence and the class `kind` (`restart.CLASSES`).

    Fenced if the record has moved on since it was judged.

    Args:
        signs: evidence of a hang.
        seen: what it was judged by; None: it is observed now.
    """
    now, seen = observer.clock.utc(), seen or observer.see(judged)
    evidence = {"verdict": reason, "pid_ticks": seen.pid_ticks, "beat_age": seen.beat_age, "seen_at": now,
                **(signs or {})}

    if judged.host == observer.where.host and judged.boot_id != observer.where.boot_id:
        kind = REBOOT

    def crash(old: Identity | None) -> Identity:
        if old is None or old.incarnation != judged.incarnation:
            raise Fenced(f"{judged.key.full} has moved on since it was judged; looking again")
        if old.status not in ALIVE:
            return old
        fenced = mark_ended(old, "crashed", now, reason)
        return replace(fenced, metadata={**fenced.metadata, "evidence": evidence, "class": kind})

    # Who must stop writing sees it at once. After a power cut nobody lives who would have to: the life is found to be
    # of another boot, and fenced again.
    return observer.store.update(Identity, judged.key, crash, named=False)


def kill_incarnation(observer: Observer, fenced: Identity, grace: float) -> list[ProcessId]:
    """Kill what is left of a fenced incarnation; return what was killed. Safe to repeat."""
    root = None
    here = observer.where
    same_kernel = (fenced.host, fenced.boot_id, fenced.pid_ns) == (here.host, here.boot_id, here.pid_ns)
    if fenced.pid and fenced.start_ticks and same_kernel and fenced.spawn_deadline is None:
        root = ProcessId(fenced.pid, fenced.start_ticks)  # a lease's pid is its spawner's
        if fenced.status == "terminated" or fenced.metadata.get("evidence", {}).get("rule"):
            # Asked to end in order, a layer that was hung or lingers would first stop those below it, who are well.
            observer.processes.send(root.pid, root.ticks, signal.SIGKILL)
    swept = observer.processes.kill_tree(root, _marker(observer, fenced), grace=grace)
    if fenced.spawn_deadline is not None:  # it never came to life: who ended before it may hold the lock of its name
        swept += observer.processes.kill_tree(None, _marker(observer, fenced, before=1), grace=grace)
    return swept


def _marker(observer: Observer, life: Identity, before: int = 0) -> str:
    return format_marker(str(observer.store.home), life.key, life.incarnation - before)


def replace_incarnation(observer: Observer, judged: Identity, reason: str, grace: float,
                 signs: dict[str, Any] | None = None) -> Identity:
    """Fence and kill one incarnation; afterwards its name is free for `start_incarnation`."""
    fenced = fence(observer, judged, reason, HUNG if signs and signs.get("rule") else CRASH, signs)
    kill_incarnation(observer, fenced, grace)
    return fenced
