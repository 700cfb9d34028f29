"""Which CLI is run, and what its environment has beyond a node's own. Pure but for looking where the SDK lies.

Nothing here loads the SDK: `garrison login` and `garrison takeover` run the CLI without it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.agents.claude.settings import ClaudeSettings

WRAPPER = Path(__file__).with_name("cli.sh")


def config_folder(home: Path) -> Path:
    """The CLI's own folder in a home (CLAUDE_CONFIG_DIR): log-in, settings, transcripts."""
    return home / "claude"


def program(settings: ClaudeSettings) -> str:
    """The CLI: what the profile names, else the SDK's own, else `claude` on PATH."""
    if settings.cli:
        return settings.cli
    found = find_spec("claude_agent_sdk")
    bundled = Path(found.origin).parent / "_bundled" / "claude" if found and found.origin else None
    return str(bundled) if bundled is not None and bundled.exists() else "claude"


def environment(home: Path, settings: ClaudeSettings) -> dict[str, str]:
    """The variables that the CLI needs, whoever runs it."""
    return {"CLAUDE_CONFIG_DIR": str(config_folder(home)), "GARRISON_CLAUDE_CLI": program(settings),
            "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", **settings.set}
