"""The tools that garrison gives its own sessions: those of workflows that fit, working below one directory.

The rule of this room: names are those that trust tiers speak of (`session/trust.toml`); a tool that a session's tier
does not allow does not exist for its model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from garrison.agents.graph.session import Function
from garrison.session.trust import Tier
from garrison.workflow.tools import Toolbox

_TEXT: Mapping[str, Any] = {"type": "string"}
_METHODS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any], tuple[str, ...]]] = {
    "read": (Toolbox.read, {"path": _TEXT}, ("path",)),
    "list": (Toolbox.list_files, {"pattern": _TEXT}, ()),
    "search": (Toolbox.search, {"expression": _TEXT, "pattern": _TEXT}, ("expression",)),
    "log": (Toolbox.git_log, {"limit": {"type": "integer"}, "revisions": _TEXT}, ()),
    "write": (Toolbox.write, {"path": _TEXT, "text": _TEXT}, ("path", "text")),
    "edit": (Toolbox.edit, {"path": _TEXT, "old": _TEXT, "new": _TEXT}, ("path", "old", "new")),
    "run": (Toolbox.run, {"command": _TEXT, "check": {"type": "boolean"}}, ("command",)),
}
"""Tool → what does it, the schema of each argument, those that are needed."""


def tools_of(root: Path, tier: Tier) -> dict[str, Function]:
    """The tools that exist at a tier, working in `root`."""
    box = Toolbox(root)
    return {name: Function(name, (method.__doc__ or "").strip(),
                           {"type": "object", "properties": dict(properties), "required": list(needed)},
                           method.__get__(box))
            for name, (method, properties, needed) in _METHODS.items() if tier.allows(name)}
