"""Which handler a node's type means: what the caller gives, what garrison has, what installed packages offer.

Packages offer handlers as entry points of the group `garrison.handlers` (name = type, object = a handler, or a class to
be called once). A type that nobody handles is refused before the run begins; there is no default that calls a model.
`start`, `exit`, `conditional`, `parallel` and `parallel.fan_in` belong to the engine itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from garrison.errors import UsageError
from garrison.pipeline.handlers.call import Handler

if TYPE_CHECKING:
    from garrison.pipeline.graph import Graph

GROUP = "garrison.handlers"
OWN = ("start", "exit", "conditional", "parallel", "parallel.fan_in")
"""The types that need no handler."""
ANY = "*"
"""The name under which a caller may give a handler for every type that has none."""
ADOPTING = frozenset({"wait.human", "wait.signal", "subgraph", "stack.manager_loop"})
"""Types that go on after an interruption where they were; all others begin a new attempt."""
OWN_TIMEOUT = frozenset({"wait.human", "wait.signal", "tool"})
"""Types that mind the node's `timeout` themselves."""

BUILT_IN: Mapping[str, tuple[str, str, str]] = {
    "codergen": ("codergen", "codergen", "one call of an agent"),
    "tool": ("tool", "tool", "a shell command"),
    "wait.human": ("wait", "wait_human", "a person's choice between the edges"),
    "wait.signal": ("wait", "wait_signal", "a signal from outside"),
    "stack.manager_loop": ("subgraph", "manager_loop", "supervision of a child pipeline"),
    "subgraph": ("subgraph", "subgraph", "another pipeline's file as one node"),
}
"""Type → (module, function, what it is); loaded when a graph has such a node."""


class Registry:
    """The handlers of one run."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._handlers: dict[str, Any] = {}
        self.given = dict(given or {})
        for name, handler in self.given.items():
            self.register(name, handler)

    def register(self, name: str, handler: Any) -> None:
        """Let `handler` do all nodes of type `name`, in place of who did them before."""
        if not isinstance(name, str) or not name:
            raise UsageError(f"{name!r:.40} is no handler type; use a text such as deploy or session.classify")
        if name in OWN:
            raise UsageError(f"the engine itself does {name} nodes; give them another type")
        execute = getattr(handler, "execute", None)
        if execute is not None and not inspect.isfunction(handler):
            handler = execute
        if not callable(handler):
            raise UsageError(f"the handler of {name} cannot be called; give a function that takes a Call")
        self._handlers[name] = handler

    def get(self, name: str) -> Handler | None:
        """The handler of a type; None if there is none."""
        if name not in self._handlers and (found := self._find(name)) is not None:
            self._handlers[name] = found
        return self._handlers.get(name, self._handlers.get(ANY))

    def is_built_in(self, name: str) -> bool:
        """Whether garrison's own handler does that type here."""
        return name in BUILT_IN and name not in self.given

    def _find(self, name: str) -> Handler | None:
        if name in BUILT_IN:
            return _built_in(name)
        return offered().get(name)

    def check(self, graph: Graph) -> None:
        """UsageError, in one line, for the first node that nobody handles."""
        for node in graph.nodes.values():
            if node.handler not in OWN and self.get(node.handler) is None:
                place = f"{graph.source}:{node.line}:{node.column}: " if node.line else ""
                raise UsageError(f"{place}node {node.id} has the type {node.handler!r:.40}, which nothing handles; "
                                 f"there are {', '.join(self.names())} (a package offers more as {GROUP}, a program by "
                                 "handlers={...})")

    def names(self) -> list[str]:
        """All types that are handled."""
        return sorted({*OWN, *BUILT_IN, *offered(), *self._handlers} - {ANY})


def _built_in(name: str) -> Handler:
    from importlib import import_module

    module, function, _ = BUILT_IN[name]
    handler: Handler = getattr(import_module(f"garrison.pipeline.handlers.{module}"), function)
    return handler


_offered: dict[str, Any] = {}


def offered() -> Mapping[str, Any]:
    """The handlers that installed packages offer; UsageError if one cannot be loaded. Looked for once a process."""
    if "" not in _offered:
        from importlib.metadata import entry_points

        _offered.update(_load(entry_points(group=GROUP)))
        _offered[""] = None
    return {name: handler for name, handler in _offered.items() if name}


def _load(points: Iterable[Any]) -> dict[str, Any]:
    found = {}
    for point in points:
        try:
            handler = point.load()
        except Exception as error:
            raise UsageError(f"the handler {point.name} ({point.value}) cannot be loaded: {error}; mend or remove the "
                             "package that offers it") from error
        found[point.name] = handler() if inspect.isclass(handler) else handler
    return found
