"""Commands of people and timers: `launch`, `resume`, `up`, `garrison doctor --fix`."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.launcher import AGAIN, RESUME, Launcher
from tests.simulator.supervision import (
    TIMING,
    existing,
    guardian_key,
    replace_incarnation,
    start_incarnation,
)
from tests.simulator.world import PERSON, PIPELINE, Effect, Process, Steps, World

from garrison.launch.resume import ResumeResult, decide_resume
from garrison.records.identity import Identity, mark_ended
from garrison.records.names import Key
from garrison.records.signals import ResumeRun, Signal, resume_id
from garrison.supervise import death_classes, hang_detector
from garrison.supervise.decisions import ChildState
from garrison.supervise.incarnation import SpawnRequest

MARKED = "marked by hand"
"""Reason of an identity whose end a user recorded."""

SECOND_LOOK = 1.0
"""Seconds between the two observations by which a command judges a silent launcher."""


def launch(*, resume: bool, again: bool = False) -> Callable[[World, Process], Steps]:
    """Return `launch`, or `resume`: start a launcher for a run that has none. Harmless twice at once.

    `again`: also retry the failed nodes.
    """
    def body(world: World, me: Process) -> Steps:
        view = world.view(me.key)
        yield None
        if (yield from _clear_the_way(world, me, view)):
            yield from _start_launcher(world, me, resume=resume, again=again)

    return body


def garrison_up(world: World, me: Process) -> Steps:
    """Start a launcher if `decide_resume` says that the run needs one."""
    key = me.key
    launcher, guardian = world.view(key), guardian_key(key.run)
    if launcher.living and (yield from _hangs(world, me, launcher)):
        assert launcher.identity is not None
        yield from replace_incarnation(world, me, launcher.identity, "it hangs", death_classes.HUNG)
        launcher = world.view(key)
    inbox = world.pending(guardian)
    decision = decide_resume(key.run, world.check.shadows[key.run], launcher, world.identities.get(guardian), inbox,
                             world.wall)
    if not launcher.living:  # as it was seen: it may have died since
        world.check.up_decided(key, inbox, decision if isinstance(decision, list) else None)
    yield None
    if not isinstance(decision, ResumeResult) and (yield from _clear_the_way(world, me, world.view(key))):
        yield from _start_launcher(world, me, resume="--resume" in decision)


def _clear_the_way(world: World, me: Process, launcher: ChildState) -> Effect:
    """Replace a launcher that died or hangs; return whether another may be started."""
    if launcher.verdict is None or launcher.identity is None:
        return True
    if launcher.living:
        if not (yield from _hangs(world, me, launcher)):
            return False
        yield from replace_incarnation(world, me, launcher.identity, "it hangs", death_classes.HUNG)
        launcher = world.view(me.key)
        if launcher.living or launcher.verdict is None or launcher.identity is None:
            return False
    if launcher.verdict.state != "ended" or launcher.identity.status == "crashed":
        yield from replace_incarnation(world, me, launcher.identity, launcher.verdict.why)
    return True


def _start_launcher(world: World, me: Process, *, resume: bool, again: bool = False) -> Effect:
    run = me.key.run

    def body(world: World, child: Process) -> Steps:
        child.code = AGAIN if again else RESUME if resume else None
        return Launcher.body(world, child)

    def request_resume(leased: Identity) -> None:
        if resume and (again or not world.check.shadows[run].over):
            payload = ResumeRun(again or None)
            world.post(Signal(resume_id(run, leased.incarnation), PERSON, {"role": "guardian", "name": PIPELINE},
                              payload.type, run, world.now, None, 0, payload.to_data()))

    yield from start_incarnation(world, me, SpawnRequest(me.key), body, request_resume)


def doctor(world: World, me: Process) -> Steps:
    """`doctor --fix`: fence and sweep what is dead; its supervisor journals the death."""
    for key in list(world.identities):
        view = world.view(key)
        yield None
        if view.identity is not None and view.verdict is not None and view.verdict.state in ("dead", "lapsed"):
            yield from replace_incarnation(world, me, view.identity, "found dead by doctor")


def mark_terminated(key: Key) -> Callable[[World, Process], Steps]:
    """Return `mark-terminated --kill` of a name: fence and sweep what lives of it, then record a graceful end."""
    def body(world: World, me: Process) -> Steps:
        judged = world.view(key)
        yield None
        if judged.identity is None or judged.verdict is None or judged.verdict.state != "alive":
            return
        yield from replace_incarnation(world, me, judged.identity, MARKED, death_classes.ORDER)
        found = world.identities[key]
        if (found.incarnation, found.status) == (judged.identity.incarnation, "crashed"):
            world.write_identity(me, key, lambda old: mark_ended(existing(old), "terminated", world.now, MARKED))

    return body


def _hangs(world: World, me: Process, launcher: ChildState) -> Effect:
    """Return whether a launcher does nothing, by two observations with a pause between, as `judge_now` does."""
    identity = launcher.identity
    other = world.find(identity.pid, identity.start_ticks)
    if identity.status != "active" or other is None or other.quiet_since is None:
        return False
    first, began = other.quiet_since, world.t
    if world.t - first <= TIMING.beat_timeout:
        return False
    yield SECOND_LOOK
    silence = 0.0 if other.quiet_since is None else world.t - other.quiet_since
    is_still = other.quiet_since == first and world.t - began < TIMING.beat_timeout
    state = other.state if other.stopped_until > world.t else "S"
    ages = {"beat": silence, "cpu": silence if is_still else 0.0,
            "running": silence if state == "T" and is_still else 0.0}
    evidence = hang_detector.Evidence(identity.incarnation, ages, state, blocked=int(state == "D"))
    if hang_detector.find_hang(evidence, TIMING.beat_timeout) is None or not other.alive:
        return False
    world.check.hung(me, other, TIMING.beat_timeout)
    return True
