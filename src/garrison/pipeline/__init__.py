"""Pipelines: text to graph to plan, and where a run of it goes next.

The rules of this room:

* Everything here but reading a file is pure: no clock, process or randomness, and garrison never writes a graph's file.
* The text is taken whole or refused with line and column (`parser`); nothing is guessed or left out.
* A graph never changes. Attributes are kept as written; their type comes from who asks (`graph`).
* What is wrong with a graph is a finding (`lint`); what this version will not run is a refusal before it costs
  anything (`launch`); where a run goes next is decided from a plan and a mapping of statuses alone (`routing`).
* Lark is loaded when the first text is read, so that importing this room stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from garrison.pipeline.engine import RunResult, run, run_async
    from garrison.pipeline.event_stream import Event
    from garrison.pipeline.graph import Edge, Graph, Node
    from garrison.pipeline.handlers.call import Call, Waiting
    from garrison.pipeline.outcome import Outcome
    from garrison.pipeline.parser import parse, parse_file
    from garrison.pipeline.questions import AutoApprove, Callback, Console, Prepared, Question, Queue, Recording

__all__ = ["AutoApprove", "Call", "Callback", "Console", "Edge", "Event", "Graph", "Node", "Outcome", "Prepared",
           "Question", "Queue", "Recording", "RunResult", "Waiting", "parse", "parse_file", "run", "run_async"]

_ROOMS = {
    "engine": ("RunResult", "run", "run_async"),
    "event_stream": ("Event",),
    "graph": ("Edge", "Graph", "Node"),
    "handlers.call": ("Call", "Waiting"),
    "outcome": ("Outcome",),
    "parser": ("parse", "parse_file"),
    "questions": ("AutoApprove", "Callback", "Console", "Prepared", "Question", "Queue", "Recording"),
}
"""Where each public name lives; it is loaded when it is asked for."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"garrison.pipeline.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
