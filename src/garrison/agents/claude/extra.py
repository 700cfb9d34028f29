"""The extra `garrison[claude]`: the SDK, with its CLI ten times as large as all the rest, is installed on request."""

from __future__ import annotations

from importlib.util import find_spec

INSTALL = "pipx inject garrison claude-agent-sdk"
"""Command that most users need."""
MISSING = ("Claude agents need claude-agent-sdk, which is not installed (about 380 MB, the extra garrison[claude]): "
           f"type `{INSTALL}`, `uv tool install --with claude-agent-sdk garrison`, or "
           "`pip install claude-agent-sdk`; in a clone, `scripts/demo --claude` adds it to .venv")


def has_sdk() -> bool:
    return find_spec("claude_agent_sdk") is not None
