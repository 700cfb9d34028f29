"""garrison's supervision of one trivial child, without a layer: `mechanism.py HOME PROGRAM`. Used by supervision.py.

What a supervising layer does to those below it, done by the same functions to a program that knows nothing of garrison:
the end comes through a verified pidfd → fence (the identity says crashed, with evidence; its bytes synced) → sweep by
life marker → the death into the journal, synced → restart policy → lease, its bytes synced → the program is started
with its marker → hook (docs/protocols.md says what is synced when, and why). Since it cannot register, its supervisor
writes `active` for it, synced, name and all. A killed supervisor's successor replays its journal and adopts the child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from garrison.errors import Fenced
from garrison.processes.runtime import Runtime
from garrison.processes.supervisor import Supervisor
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key
from garrison.supervise.decisions import decide_restart
from garrison.supervise.incarnation import (
    SpawnRequest,
    acquire_lease,
    activate,
    register,
    replace_incarnation,
    start_incarnation,
)
from garrison.supervise.restart import Death, Policy
from garrison.system.event_loop import EventLoop

ME = Key("guardian", "bench", "bench")
CHILD = Key("runner", "child", "bench")
GRACE = 2.0


def become(world: Runtime) -> Supervisor:
    """This process as the supervisor's next life, its journal replayed."""
    observer = world.observer
    old = world.store.read(Identity, ME)
    if old is not None and observer.judge(old).state != "ended":
        replace_incarnation(observer, old, "found dead", GRACE)
    leased = acquire_lease(observer, SpawnRequest(ME), 30.0)
    life = register(observer, ME, leased.incarnation, time.sleep)
    return Supervisor(world, life, Writer(world.home / "journal.jsonl", life.token))


class ChildKeeper:
    """Supervise one name."""

    def __init__(self, world: Runtime, supervisor: Supervisor, program: str) -> None:
        self.world, self.supervisor, self.program = world, supervisor, program
        self.deaths = [Death(entry.data["incarnation"], entry.data["monotonic"], entry.data["boot_id"])
                       for entry in supervisor.journal.entries if entry.kind == "death"]
        self.policy = Policy(window=1e-9)  # a benchmark kills more often than any real use

    def turn(self) -> bool:
        """Observe, decide, act; return whether anything was done."""
        view = self.supervisor.child_state(CHILD)
        step = decide_restart(view, self.deaths, self.world.clock.monotonic(), self.world.observer.machine.boot_id,
                         self.policy)
        if step.kind == "replace":
            self.supervisor.replace_child(view, step.why)
        elif step.kind == "record":
            died = self.supervisor.record_death(self.supervisor.death_record(view))
            self.deaths = [Death(died.incarnation, died.monotonic, died.boot_id)]
        elif step.kind == "start":
            self.start()
        return step.kind in ("replace", "record", "start")

    def start(self) -> None:
        """Start the next incarnation of the program."""
        started = []

        def spawn(identity: Identity, life: str) -> None:
            env = {"PATH": os.environ.get("PATH", os.defpath), "GARRISON_LIFE": life}
            child = self.world.processes.spawn([self.program], env=env, cwd=str(self.world.home),
                                               log=self.world.home / "log")
            child.close()
            started.append(child.pid)

        start_incarnation(self.world.observer, SpawnRequest(CHILD, ME), 30.0, spawn)
        if started:
            me, now = self.world.observer.origin(started[0]), self.world.clock.utc()
            with contextlib.suppress(Fenced):
                self.world.store.update(Identity, CHILD, lambda old: activate(old, me, now))  # type: ignore[arg-type]


def main() -> None:
    """Supervise forever."""
    home = Path(sys.argv[1])
    home.mkdir(parents=True, exist_ok=True)
    world = Runtime.real(home)
    keeper = ChildKeeper(world, become(world), sys.argv[2])
    with EventLoop((signal.SIGCHLD,)) as waker:
        while True:
            keeper.supervisor.incarnation.beat()
            while keeper.turn():
                pass
            world.processes.reap()
            keeper.supervisor.watch(waker, [keeper.supervisor.child_state(CHILD)])
            waker.wait(1.0)


if __name__ == "__main__":
    main()
