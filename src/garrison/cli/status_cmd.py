"""`garrison status`: what runs there are, how far each is, which layers live, what failed and where to look.

Everything is folded from records and journals at the moment of asking; nothing is stored, nothing repaired.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from garrison.cli import resolve
from garrison.cli.home_cmd import home_option, json_option, name_other_homes
from garrison.cli.output import age, say, show_json, show_table
from garrison.errors import GarrisonError, NotFound
from garrison.layers.run_state import RunState, fold
from garrison.records import journal
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import ROLES, check_run
from garrison.records.run import Launch, Result, RunFiles
from garrison.records.store import Store
from garrison.settings import find_home
from garrison.supervise.observe import Observer
from garrison.system.clock import from_iso

UNFINISHED = ("new", "running")
"""Run statuses in which somebody should be at work."""


@click.command()
@click.argument("run", required=False)
@json_option
@home_option
def status(run: str | None, as_json: bool, home: str | None) -> None:
    """Show all runs of the home and those unfinished in full, or RUN alone."""
    place = find_home(home)
    asked = _Status(place)
    if run is None:
        _all(asked, as_json=as_json)
        return
    if check_run(run) not in run_records.runs(place):
        raise NotFound(f"no run {run} in {place}; `garrison status` lists the runs")
    body = asked.run(run)
    if as_json:
        show_json(body)
    else:
        _show_run(body)


def _all(asked: _Status, *, as_json: bool) -> None:
    bodies = [asked.run(name) for name in run_records.runs(asked.store.home)]
    if as_json:
        show_json(bodies)
        return
    if not bodies:
        name_other_homes(asked.store.home)
        return
    show_table(("RUN", "STATUS", "MERGED", "PIPELINE", "REPOSITORY", "BEGUN", "REASON"), [
        (body["run_id"], body["status"], _merged(body), body["pipeline_id"], body["repo"],
         f"{age(body['age_s'])} ago", body["reason"]) for body in bodies])
    shown = [body for body in bodies if body["status"] in UNFINISHED]
    for body in shown or bodies[-1:]:
        print()
        _show_run(body)


def _merged(body: dict[str, Any]) -> str:
    return "ad hoc" if body["adhoc"] else f"{body['merged']} of {body['total']}"


def _show_run(body: dict[str, Any]) -> None:
    print(f"run {body['run_id']}: {body['status']}, {_merged(body)}" + (" merged" if not body["adhoc"] else "")
          + (f"; {body['reason']}" if body["reason"] else ""))
    if body["hint"]:
        print(body["hint"])
    show_table(("LAYER", "LIFE", "STATUS", "VERDICT", "PHASE", "PID", "BEAT", "WHY"), [
        (layer["agent"], layer["incarnation"], layer["status"], layer["verdict"], layer["phase"], layer["pid"],
         age(layer["beat_age_s"]), layer["why"]) for layer in body["layers"]])
    if body["nodes"]:
        print()
        show_table(("NODE", "STATUS", "TRY", "SINCE", "COMMIT", "REASON"), [
            (node["node"], node["status"], node["attempt"], age(node["since_s"]), node["commit"][:10],
             node["reason"].partition("\n")[0]) for node in body["nodes"]])
    for failed in body["failed"]:
        why = failed["reason"] or "no reason was recorded"
        print(f"\n{failed['node']} failed in attempt {failed['attempt']}: {why}")
        if failed["tail"]:
            print("\n".join(f"    {line}" for line in failed["tail"].splitlines()[-5:]))
        print(f"  look: garrison logs {failed['node']} --run {body['run_id']}   ({failed['folder']})")


@dataclass
class _Status:
    """Gathers what there is to say of the runs of one home."""

    home: Path

    def __post_init__(self) -> None:
        self.store = Store(self.home)
        self.observer: Observer = resolve.observer_of(self.store)
        self.identities, errors = self.store.list(Identity)
        for error in errors:
            say(str(error))

    def run(self, run: str) -> dict[str, Any]:
        """Everything about one run; what cannot be read is said on stderr and named in `status`."""
        files = RunFiles(self.home, run)
        try:
            launch = run_records.load(Launch, files.launch)
            state = fold(journal.read_all(files.journal))
        except GarrisonError as error:
            say(str(error))
            launch, state = None, RunState(status="corrupt", reason=str(error))
        layers = [self._layer(identity) for identity in sorted(
            (one for one in self.identities if one.run_id == run), key=lambda one: (ROLES.index(one.role), one.name))]
        status = _status_of(launch, state, layers)
        nodes = [{"node": name, **vars(node), "since_s": self._age(node.since)} for name, node in state.nodes.items()]
        return {
            "run_id": run, "status": status, "reason": state.reason,
            "merged": sum(node["status"] == "validated" for node in nodes), "total": len(nodes),
            "pipeline_id": launch.pipeline_id if launch else "", "repo": launch.repo if launch else "",
            "base": launch.base if launch else "", "adhoc": bool(launch and launch.adhoc),
            "created_at": launch.created_at if launch else "", "age_s": self._age(launch.created_at if launch else ""),
            "hint": _hint(run, status, layers), "layers": layers, "nodes": nodes,
            "failed": [self._failed(files, node) for node in nodes if node["status"] == "failed"],
            "deaths": sum(len(deaths) for deaths in state.deaths.values()), "folder": str(files.root)}

    def _layer(self, identity: Identity) -> dict[str, Any]:
        verdict, seen = self.observer.judge(identity), self.observer.see(identity)
        return {"agent": identity.key.full, "role": identity.role, "name": identity.name, "status": identity.status,
                "incarnation": identity.incarnation, "verdict": verdict.state, "living": verdict.living,
                "phase": self._phase(identity), "pid": identity.pid, "beat_age_s": seen.beat_age,
                "age_s": self._age(identity.created_at), "why": identity.reason or verdict.why}

    def _phase(self, identity: Identity) -> str:
        try:
            hook = self.store.read(Hook, identity.key)
        except GarrisonError as error:
            say(str(error))
            return "corrupt"
        return hook.phase if hook else ""

    def _failed(self, files: RunFiles, node: dict[str, Any]) -> dict[str, Any]:
        """Why a node failed, the end of its log, and where to look."""
        folder = files.attempt(node["node"], node["attempt"])
        try:
            result = run_records.load(Result, folder / "result.json")
        except GarrisonError as error:
            say(str(error))
            result = None
        return {"node": node["node"], "attempt": node["attempt"], "reason": node["reason"],
                "tail": result.tail if result else "", "folder": str(folder)}

    def _age(self, since: str) -> float | None:
        return max(0.0, self.observer.clock.time() - from_iso(since)) if since else None


def _status_of(launch: Launch | None, state: RunState, layers: list[dict[str, Any]]) -> str:
    """The journal's word; an ad-hoc run has no journal and is as its runner is."""
    if launch is None or not launch.adhoc:
        return state.status
    runner = next((layer for layer in layers if layer["role"] == "runner"), None)
    if runner is None:
        return "new"
    return "running" if runner["living"] else str(runner["status"])


def _hint(run: str, status: str, layers: list[dict[str, Any]]) -> str:
    """What to do about a run that nobody leads, '' if there is nothing to do."""
    if status == "stopped":
        return f"stopped; `garrison launch --resume {run}` goes on"
    if status not in UNFINISHED or any(layer["role"] == "launch" and layer["living"] for layer in layers):
        return ""
    if any(layer["role"] == "launch" for layer in layers) or not layers:
        return f"its launcher is gone; `garrison up` or `garrison launch --resume {run}` goes on"
    return ""
