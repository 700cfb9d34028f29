"""What a launch says of networks and keys that are not held."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.node.places import network_notes
from garrison.processes.runtime import Runtime


@pytest.mark.parametrize(("config", "environ", "notes"), [
    ("", {}, []),
    ('[sandbox]\nmode = "none"\nnetwork = "allow"', {}, ["agent claude has network = \"allow\" but no sandbox"]),
    ('[sandbox]\nmode = "bubblewrap"\n[agents.claude]\nlogin = "file"', {},
     ["agent claude works with a copy of its CLI's log-in"]),
    ('[sandbox]\nmode = "bubblewrap"', {}, []),
    ('[sandbox]\nmode = "bubblewrap"', {"ANTHROPIC_API_KEY": "k"}, []),
    ('[sandbox]\nmode = "bubblewrap"\nnetwork = "none"', {"ANTHROPIC_API_KEY": "k"},
     ["agent claude has network = \"none\": it cannot reach its model"]),
    ('[sandbox]\nmode = "bubblewrap"\nnetwork = "allow"', {"CLAUDE_CODE_OAUTH_TOKEN": "k"}, []),
])
def test_a_launch_names_what_is_not_held(
        tmp_path: Path, config: str, environ: dict[str, str], notes: list[str]) -> None:
    (tmp_path / "config.toml").write_text(config)
    told = list(network_notes(Runtime.real(tmp_path, {"GARRISON_SANDBOX": "none"} if not config else environ),
                              ["claude", "command"] if "log-in" in str(notes) else ["claude"]))
    assert len(told) == len(notes), told
    assert all(text.startswith(start) for text, start in zip(told, notes, strict=True))
