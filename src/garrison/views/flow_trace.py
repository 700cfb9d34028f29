"""Edges of a run's graph that were followed, and how often: its flow, replayed from the guardian's journal. Pure.

Only for drawings: a flow that cannot be replayed (a graph or journal of another version) leaves the rest of a view as
it is, and no edge is marked from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

from garrison.pipeline.plan import RunPlan
from garrison.processes.run_flow import RunFlow
from garrison.records.events import FlowAdvanced, GuardianSignal, LandingChanged, PullRequestChanged, Snapshot
from garrison.views.event_log import GUARDIAN, Record
from garrison.views.run_model import CANNOT_REPLAY


class FlowTrace:
    """Flow of one run, replayed record by record. Without a plan (None) it marks nothing."""

    def __init__(self, run: str, plan: RunPlan | None) -> None:
        self._flow = RunFlow(plan.program, run, plan.children) if plan is not None and plan.program else None

    @property
    def followed(self) -> Mapping[str, int]:
        """Return edge (its index in the graph, as text) → how often it was followed."""
        return {str(index): count for index, count in self._flow.followed.items()} if self._flow else {}

    def apply(self, record: Record) -> Mapping[str, int]:
        """Replay a record; return the edges that it changed, with their counts."""
        if self._flow is None or record.journal != GUARDIAN:
            return {}
        before = dict(self._flow.followed)
        try:
            self._replay(record)
        except CANNOT_REPLAY:
            self._flow = None
            return {}
        return {str(index): count for index, count in self._flow.followed.items() if before.get(index) != count}

    def _replay(self, record: Record) -> None:
        assert self._flow is not None
        match record.event:
            case FlowAdvanced(body=body):
                self._flow.apply(body)
            case GuardianSignal(graph=text) if text:
                self._flow.change(text)
            case (GuardianSignal(flow=FlowAdvanced(body=body)) | LandingChanged(flow=FlowAdvanced(body=body))
                  | PullRequestChanged(flow=FlowAdvanced(body=body))):
                self._flow.apply(body)
            case Snapshot(state=state) if state.get("flow"):
                self._flow.restore(state["flow"], str(state.get("graph", "")))
