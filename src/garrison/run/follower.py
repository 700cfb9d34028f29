"""Follower of a run: what brings its tested branch on to a target beyond this repository, such as a pull request.

The seam between runs and the rooms that know a forge. A launch names how its run lands; `EXTRAS` says which module
knows a way that is not a merge here. It is imported by launcher and guardian of such a run, and by its pre-flight, and
by nothing else, so that no other run loads a forge's client.

A follower observes in the guardian's turn and decides in its policy: `GuardianView.follower` is what it saw, and
answers from that and the run's journal what comes next (`guardian_view.FollowerView`, pure). Its records are the run's,
so the state folds them as any other (`run/state.py`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from garrison.records.run import LAND_PR

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.pipeline.plan import RunPlan
    from garrison.processes.actions import Action
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.run.guardian_view import FollowerView, LandingView
    from garrison.run.state import RunState
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git

EXTRAS = {LAND_PR: "garrison.pull_request.worker"}
"""`land` of a launch → the module that knows it, which has what `Extra` says."""


class Follower(Protocol):
    """Follower of one run, in its guardian's process."""

    plan: RunPlan
    """Plan of the run, which the user may change."""
    wake_file: Path
    """File whose change makes it look at once."""

    def observe(self, state: RunState, landing: LandingView | None) -> FollowerView | None:
        """Return what is known, without waiting; None while there is nothing to follow."""

    def begin(self, action: Action, state: RunState) -> None:
        """Begin a step that its view decided (`ASK_FOLLOWER`); the next views tell what came of it."""

    def watch(self, event_loop: EventLoop) -> None:
        """Wake the loop when it has learnt something."""

    def seconds_to_look(self) -> float | None:
        """Return the seconds until it must be observed; None if nothing is due."""


class Extra(Protocol):
    """What a module of `EXTRAS` offers."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables, such as tokens, that launcher and guardian get: no runner, agent or gate does."""

    def check_base(self, runtime: Runtime, git: Git, stated: str | None) -> tuple[str, str, str]:
        """Return base, remote and the base's commit; Refused or ForgeError if the run could not land there."""

    def open_follower(self, runtime: Runtime, launch: Launch, plan: RunPlan, git: Git) -> Follower:
        """Return the follower of a run."""


def find_extra(land: str) -> Extra | None:
    """Import the extra that knows a way of landing; None for one that needs none."""
    name = EXTRAS.get(land)
    return cast("Extra", import_module(name)) if name is not None else None


def follower_variables(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that launcher and guardian of a run get for its follower."""
    extra = find_extra(launch.land)
    return extra.variables(environ) if extra is not None else {}
