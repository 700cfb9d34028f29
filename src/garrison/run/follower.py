"""Follower of a run: brings its tested branch to a target beyond this repository, such as a pull request.

The seam between runs and the packages that know a forge. A launch names how its run lands; for a way other than a merge
here, an extra registers three parts in `plugins.OWN`: `land.WAY.follower`, `land.WAY.check` and `land.WAY.variables`.
Launcher and guardian of such a run and its pre-flight load them, so that no other run loads a forge's client.

A follower observes in the guardian's turn and decides in its policy: `GuardianView.follower` has its observations, and
decides from them and the run's journal what comes next (`guardian_view.FollowerView`, pure). Its records are the run's,
so the state folds them like all others (`run/state.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from garrison.plugins import OWN, PluginGroup, load

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


class Follower(Protocol):
    """Follower of one run, in its guardian's process."""

    plan: RunPlan
    """Plan of the run, which the user may change."""
    wake_file: Path
    """File whose change makes it poll at once."""

    def observe(self, state: RunState, landing: LandingView | None) -> FollowerView | None:
        """Return the observations, without waiting; None while there is nothing to follow."""

    def begin(self, action: Action, state: RunState) -> None:
        """Start a step that its view decided (`ASK_FOLLOWER`); later views contain its result."""

    def watch(self, event_loop: EventLoop) -> None:
        """Wake the loop when there is news."""

    def seconds_to_look(self) -> float | None:
        """Return the seconds until it must be observed; None if nothing is due."""


def open_follower(runtime: Runtime, launch: Launch, plan: RunPlan, git: Git) -> Follower | None:
    """Return the follower of a run; None for one that needs none."""
    opened = _part(launch.land, "follower")
    return cast("Follower", opened(runtime, launch, plan, git)) if opened is not None else None


def find_base(land: str, runtime: Runtime, git: Git, stated: str | None) -> tuple[str, str, str] | None:
    """Return base, remote and the base's commit of a run that lands this way; None if it lands in this repository.

    Raises:
        Refused, ForgeError: the run could not land there.
    """
    check = _part(land, "check")
    return cast("tuple[str, str, str]", check(runtime, git, stated)) if check is not None else None


def follower_variables(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, such as tokens, that only launcher and guardian get: no runner, agent or gate does."""
    variables = _part(launch.land, "variables")
    return cast("dict[str, str]", variables(environ)) if variables is not None else {}


def _part(land: str, name: str) -> Any:
    part = f"land.{land}.{name}"
    return load(PluginGroup.PARTS, part) if part in OWN[PluginGroup.PARTS] else None
