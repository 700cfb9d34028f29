"""What there is to say of the runs of a home: gathered from records and journals at the moment of asking.

The rule of this room: only reads, repairs nothing, stores nothing. A `Gatherer` may be asked again and again: journals
are read on from where they were, records only when their file changed. What cannot be read is told in `problems`, never
passed over. The bodies are JSON's shapes: `--json` prints them as they are, the view paints them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from garrison.errors import GarrisonError
from garrison.processes.run_plan import check_journal_present
from garrison.processes.run_state import NodeState, RunState
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key
from garrison.records.run import Launch, RunFiles
from garrison.supervise.verdict import judge
from garrison.system.clock import from_iso
from garrison.views.limits import limits
from garrison.views.node_state import PLACES
from garrison.views.node_view import UNFINISHED, Nodes, place_of
from garrison.views.run_model import Reading, RunLook


class Gatherer:
    """Gathers what there is to say of the runs of one home."""

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        self.home = home
        world = Runtime.real(home, environ)
        self.store, self.observer, self.timing = world.store, world.observer, world.timing
        self.reading = Reading()
        self._looks: dict[str, RunLook] = {}

    def runs(self) -> list[str]:
        """The ids of all runs, oldest first."""
        return run_records.list_runs(self.home)

    def run(self, run: str, *, whole: bool = True) -> dict[str, Any]:
        """Everything about one run; what cannot be read is in `problems`. Not `whole`: only what its line needs."""
        self.reading.problems = []
        look = self._looks.setdefault(run, RunLook(self.home, run))
        launch = self.reading.file(look.files.launch, lambda: run_records.load(Launch, look.files.launch))
        try:
            state = look.state()
            check_journal_present(self.store, launch or _unknown(run), state, look.files.journal)
        except GarrisonError as error:
            self.reading.problems.append(str(error))
            state = RunState(status="corrupt", reason=str(error))
        body = self._head(run, launch, state)
        if whole:
            body |= self._details(Nodes(self.reading, look, body, launch or _unknown(run), state, self.observer))
        return {**body, "problems": self.reading.problems}

    def no_run(self) -> list[dict[str, Any]]:
        """The limits of a run that is launched without options."""
        from garrison.views.limits import Used

        return limits(_unknown(""), self.timing, Used())

    def _head(self, run: str, launch: Launch | None, state: RunState) -> dict[str, Any]:
        layers = self._layers(run)
        status = _status_of(launch, state, layers)
        counts = dict.fromkeys(PLACES.values(), 0)
        for name in state.nodes:
            place = place_of(state, name)
            counts[place] = counts.get(place, 0) + 1
        known = launch or _unknown(run)
        return {
            "run_id": run, "status": status, "reason": state.reason,
            "waiting": status == "running" and waits(state), "gates": gates_told(state),
            "merged": counts["merged"], "total": len(state.nodes), "counts": counts,
            "pipeline_id": known.pipeline_id, "repo": known.repo, "base": known.base, "adhoc": known.adhoc,
            "created_at": known.created_at, "age_s": self._age(known.created_at),
            "hint": _hint(run, status, layers, resumable=status == "failed" and not state.over), "layers": layers,
            "deaths": sum(len(deaths) for deaths in state.deaths.values()),
            "folder": str(RunFiles(self.home, run).root)}

    def _details(self, nodes: Nodes) -> dict[str, Any]:
        bodies = nodes.all(self._age)
        used = nodes.used(self.observer.clock.monotonic(), self.observer.where.boot_id)
        pause = nodes.queue.pause if nodes.queue else None
        return {"nodes": bodies, "failed": [nodes.failed(node) for node in bodies if node["status"] == "failed"],
                "queue": {"paused": pause.reason, "detail": pause.detail} if pause else None,
                "landing": nodes.landing(self._age), "events": nodes.look.events(),
                "limits": limits(nodes.launch, self.timing, used)}

    def _layers(self, run: str) -> list[dict[str, Any]]:
        keys = sorted((key for key in self.store.keys(Identity) if key.run == run),
                      key=lambda key: (ROLES.index(key.role), key.name))
        return [layer for key in keys if (layer := self._layer(key))]

    def _layer(self, key: Key) -> dict[str, Any] | None:
        identity = self.reading.file(self.store.path(Identity, key), lambda: self.store.read(Identity, key))
        if identity is None:
            return None
        seen = self.observer.see(identity)
        verdict = judge(identity, seen)
        own = identity.status != "starting"  # until then the record holds the pid of who starts it
        return {"agent": key.full, "role": identity.role, "name": identity.name, "status": identity.status,
                "incarnation": identity.incarnation, "verdict": verdict.state, "living": verdict.living,
                "phase": self._phase(key), "pid": identity.pid if own else None, "beat_age_s": seen.beat_age,
                "stopped": own and verdict.living and seen.process_state == "T",
                "age_s": self._age(identity.created_at), "exit": identity.exit, "why": identity.reason or verdict.why}

    def _phase(self, key: Key) -> str:
        before = len(self.reading.problems)
        hook = self.reading.file(self.store.path(Hook, key), lambda: self.store.read(Hook, key))
        return hook.phase if hook else "corrupt" if len(self.reading.problems) > before else ""

    def _age(self, since: str) -> float | None:
        return max(0.0, self.observer.clock.time() - from_iso(since)) if since else None


def waits(state: RunState) -> bool:
    """Whether nothing of a run goes on but by a word from outside. Pure."""
    def moves(node: NodeState) -> bool:
        """Whether it is at work, or about to begin again."""
        return node.status in ("active", "impl_complete") or (node.status == "pending" and bool(node.step))

    return bool(state.gates) and not any(moves(node) for node in state.nodes.values())


def gates_told(state: RunState) -> list[dict[str, Any]]:
    """The open gates of a run, with what each waits for in words. Pure."""
    return [{"node": gate.node, "place": gate.place, "kind": gate.kind, "text": gate.question.text,
             "options": [option.label for option in gate.question.options], "signal": gate.signal,
             "deadline": gate.deadline or None, "doing": gate.summary()} for gate in state.gates.values()]


def progress(body: Mapping[str, Any]) -> str:
    """Return how many nodes of a run have landed, in three words. Pure."""
    return "ad hoc" if body["adhoc"] else f"{body['merged']} of {body['total']}"


def shown(bodies: Sequence[Mapping[str, Any]], also: Container[str] = ()) -> set[str]:
    """Which runs are worth showing in full when none was named: those under way and `also`, else the last. Pure."""
    found = {body["run_id"] for body in bodies if body["status"] in UNFINISHED or body["run_id"] in also}
    return found or {body["run_id"] for body in bodies[-1:]}


def _unknown(run: str) -> Launch:
    """In place of a launch record that is not there: the defaults."""
    return Launch(run, "", "", "", "", "")


def _status_of(launch: Launch | None, state: RunState, layers: list[dict[str, Any]]) -> str:
    """The journal's word; an ad-hoc run has no journal and is as its runner is."""
    if launch is None or not launch.adhoc:
        return "corrupt" if launch is None else state.status
    runner = next((layer for layer in layers if layer["role"] == "runner"), None)
    if runner is None:
        return "new"
    return "running" if runner["living"] else str(runner["status"])


def _hint(run: str, status: str, layers: list[dict[str, Any]], *, resumable: bool = False) -> str:
    """What to do about a run that nobody leads, '' if there is nothing to do."""
    if status == "stopped":
        return f"stopped; `garrison launch --resume {run}` goes on"
    if resumable:
        return f"what failed is parked; once that is mended `garrison launch --resume {run}` goes on where it was"
    if status not in UNFINISHED or any(layer["role"] == "launch" and layer["living"] for layer in layers):
        return ""
    if any(layer["role"] == "launch" for layer in layers) or not layers:
        return f"its launcher is gone; `garrison up` or `garrison launch --resume {run}` goes on"
    return ""
