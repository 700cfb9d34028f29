"""Pipelines: parse, lint, plan and run graphs in the DOT dialect.

* `parser` turns DOT text into a `graph`, whole or not at all; `lint` reports its problems; `transforms` prepare it.
* `flow` decides where a run goes next: a pure state machine that both drivers use.
* `engine` and `driver` run a graph as a library (`garrison.pipeline.run`), with `handlers` for the types of nodes.
* `plan` prepares a garrison run of a graph, which the guardian drives, and refuses what such a run cannot do.
* garrison never writes to the file of a graph. Lark is loaded when the first text is parsed, and the names below
  when they are first used, so that importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from garrison.pipeline.engine import run, run_async
    from garrison.pipeline.graph import Edge, Graph, Node
    from garrison.pipeline.handlers.call import Call, Waiting
    from garrison.pipeline.outcome import Outcome, RunResult
    from garrison.pipeline.parser import parse, parse_file
    from garrison.pipeline.questions import AutoApprove, Callback, Console, Prepared, Question, Queue, Recording
    from garrison.pipeline.store import Event

__all__ = ["AutoApprove", "Call", "Callback", "Console", "Edge", "Event", "Graph", "Node", "Outcome", "Prepared",
           "Question", "Queue", "Recording", "RunResult", "Waiting", "parse", "parse_file", "run", "run_async"]

_EXPORTS = {
    "engine": ("run", "run_async"),
    "store": ("Event",),
    "graph": ("Edge", "Graph", "Node"),
    "handlers.call": ("Call", "Waiting"),
    "outcome": ("Outcome", "RunResult"),
    "parser": ("parse", "parse_file"),
    "questions": ("AutoApprove", "Callback", "Console", "Prepared", "Question", "Queue", "Recording"),
}
"""Module → the public names it defines."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(f"garrison.pipeline.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
