"""Handler registry: the handler of each node type, from the caller, from garrison, or from installed packages.

Packages offer handlers as entry points of the group `garrison.handlers` (name = type, object = a handler, or a class to
be instantiated). A type without a handler is refused before the run starts; no default calls a model. The engine itself
executes `start`, `exit`, `conditional`, `parallel` and `parallel.fan_in`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison import plugins
from garrison.errors import UsageError
from garrison.pipeline.flow.program import AUTOMATIC
from garrison.pipeline.handlers.call import Handler
from garrison.pipeline.handlers.codergen import codergen
from garrison.pipeline.handlers.subgraph import manager_loop, subgraph
from garrison.pipeline.handlers.tool import tool
from garrison.pipeline.handlers.wait import wait_human, wait_signal
from garrison.plugins import PluginGroup

if TYPE_CHECKING:
    from garrison.pipeline.graph import Graph

ENTRY_POINTS = PluginGroup.HANDLERS.value
ANY = "*"
"""Name under which a caller registers a handler for all types without one."""
RESUMABLE_TYPES = frozenset({"wait.human", "wait.signal", "subgraph", "stack.manager_loop"})
"""Types that continue after an interruption; all others start a new attempt."""
TYPES_WITH_TIMEOUT = frozenset({"wait.human", "wait.signal", "tool"})
"""Types whose handlers apply the node's `timeout` themselves."""


class BuiltIn(NamedTuple):
    """A handler of garrison and its description."""

    handler: Handler
    description: str


BUILT_IN: Mapping[str, BuiltIn] = {
    "codergen": BuiltIn(codergen, "one call of an agent"),
    "tool": BuiltIn(tool, "a shell command"),
    "wait.human": BuiltIn(wait_human, "the user's choice between the edges"),
    "wait.signal": BuiltIn(wait_signal, "a signal from outside"),
    "stack.manager_loop": BuiltIn(manager_loop, "supervision of a child pipeline"),
    "subgraph": BuiltIn(subgraph, "another pipeline's file as one node"),
}
"""Type → garrison's own handler."""


class Registry:
    """Handlers of one run."""

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self._handlers: dict[str, Handler] = {}
        self.given = dict(given or {})
        for name, handler in self.given.items():
            self.register(name, handler)

    def register(self, name: str, handler: Any) -> None:
        """Use `handler` for all nodes of type `name`, instead of any other."""
        if not isinstance(name, str) or not name:
            raise UsageError(f"{name!r:.40} is not a handler type; use a name such as deploy or session.classify")
        if name in AUTOMATIC:
            raise UsageError(f"the engine itself does {name} nodes; give them another type")
        execute = getattr(handler, "execute", None)
        if execute is not None and not inspect.isfunction(handler):
            handler = execute
        if not callable(handler):
            raise UsageError(f"the handler of {name} cannot be called; give a function that takes a Call")
        self._handlers[name] = handler

    def get(self, name: str) -> Handler | None:
        """Return the handler of a type; None if there is none."""
        # The caller's, then garrison's, then a package's: installing a package must not change the meaning of `tool`.
        if name in BUILT_IN and name not in self._handlers:
            return BUILT_IN[name].handler
        if name not in self._handlers and name in offered():
            installed = load_offered(name)
            execute = None if inspect.isfunction(installed) else getattr(installed, "execute", None)
            return execute or installed  # type: ignore[no-any-return]
        handler: Handler | None = self._handlers.get(name, self._handlers.get(ANY))
        return handler

    def is_built_in(self, name: str) -> bool:
        return name in BUILT_IN and name not in self.given

    def check(self, graph: Graph) -> None:
        """Raise UsageError for the first node without a handler."""
        for node in graph.nodes.values():
            if node.handler not in AUTOMATIC and self.get(node.handler) is None:
                raise UsageError(graph.message_at(
                    node.line, node.column, f"node {node.id} has the type {node.handler!r:.40}, which has no handler; "
                    f"there are {', '.join(self.names())} (a package offers more as {ENTRY_POINTS}, a program by "
                    "handlers={...})"))

    def names(self) -> list[str]:
        return sorted({*AUTOMATIC, *BUILT_IN, *offered(), *self._handlers} - {ANY})


def offered() -> frozenset[str]:
    """Return the types for which installed packages offer a handler; none of them is imported."""
    return frozenset(plugins.offered(PluginGroup.HANDLERS))


@cache
def load_offered(name: str) -> Any:
    """Return the handler that a package offers for a type; UsageError if it cannot be loaded."""
    handler = plugins.load(PluginGroup.HANDLERS, name)
    if not inspect.isclass(handler):
        return handler
    try:
        return handler()
    except Exception as error:  # a package's code may raise anything
        raise UsageError(f"the handler {name} cannot be made: {type(error).__name__}: {error}; repair or uninstall its "
                         "package") from error
