"""state/README.md lists each file of a home in which much has happened, with its mode and schema."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from garrison.launch.launch import CHANGED_DEFAULTS, TOLD, tell_changed_defaults
from support import Node, Place, wait_for

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "state/README.md"
GRAPH = ("digraph { start [shape=Mdiamond]; ask [shape=hexagon]; exit [shape=Msquare]; start -> ask "
         "ask -> exit [label=Yes] }")
OTHER_MODES = re.compile(r"^(pipelines|run)/|\.log$|/nodes/[^/]+/[^/]+/(agent/|signals\.jsonl$)")
"""Files that may have another mode than 0600, by the page."""
WORKFLOW = "name: broken\nsteps:\n  - {name: one, tool: run, arguments: {command: 'false'}}\n"


def patterns() -> list[re.Pattern[str]]:
    """Return the paths of the page's table as patterns; a folder stands for what is in it."""
    found = []
    for line in README.read_text().splitlines():
        if not line.startswith("| `"):
            continue
        words = re.findall(r"`([^`]+)`", line.split("|")[1])
        first = words[0]
        for word in words:
            path = first + word if word.startswith(".") and "{" not in word else word
            is_relative = word.split("/")[0] != first.split("/")[0] and not word.startswith(".")
            if is_relative and "/" in first.rstrip("/"):
                path = f"{first.rpartition('/')[0]}/{word}"
            path = re.sub(r"\{role\}-\{name\}(@\{run\})?", "{name}", path)  # also launch@RUN, and without a run
            shape = re.sub(r"\\\{[^}]*\\\}|…", "[^/]+", re.escape(path)).replace(r"\*", "[^/]*")
            found.append(re.compile(shape + (".+" if path.endswith("/") else "")))
    return found


@pytest.mark.slow
def test_each_file_of_a_home_is_on_the_page(place: Place) -> None:
    """A launch, a landing, a gate, a death, records made by hand, a pipeline run and a failed workflow."""
    child = place.launch_until("a", place.graph(Node("a", before=place.hold("a")), Node("b")), "r1")
    place.kill("runner-a")
    wait_for("it has a successor", lambda: place.identity("runner-a")["incarnation"] > 1)
    place.release_to_end(child, "a")
    (place.root / "ask.dot").write_text(GRAPH)
    assert place.command("pipeline", "run", place.root / "ask.dot").returncode == 3
    (place.root / "broken.yaml").write_text(WORKFLOW)
    assert place.command("workflow", "run", place.root / "broken.yaml").returncode == 1
    assert place.command("identity-registry", "create", "guardian", "crew").returncode == 0
    assert place.command("hook-manager", "create", "runner", "fix").returncode == 0
    assert place.command("signal-protocol", "write", "guardian", "runner-fix", "GUIDANCE").returncode == 0

    known = patterns()
    files = [path for path in sorted(place.home.rglob("*")) if not path.is_dir()]
    unknown = [name for name in (str(path.relative_to(place.home)) for path in files)
               if not any(pattern.fullmatch(name) for pattern in known)]
    assert not unknown, "\n".join(unknown)
    assert (place.home / "README.md").read_text() == README.read_text()
    wrong = [f"{stat.S_IMODE(path.stat().st_mode):o} {path.relative_to(place.home)}"
             for path in (place.home, *place.home.rglob("*")) if not path.is_symlink() and not path.is_socket()
             and stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)
             and not OTHER_MODES.search(str(path.relative_to(place.home)))]
    assert not wrong, "\n".join(wrong)
    for path in files:
        if path.parent.name in ("identities", "hooks") and path.suffix == ".json":
            assert json.loads(path.read_text())["schema"] == 1, path
        if path.name == "journal.jsonl" or (path.parent.name == "layers" and path.suffix == ".jsonl"):
            assert {json.loads(line)["schema"] for line in path.read_text().splitlines()} <= {1}, path


def test_changed_defaults_are_reported_once_in_a_home_that_was_used_before(tmp_path: Path) -> None:
    assert tell_changed_defaults(tmp_path) == [], "a new home has no other defaults"
    (tmp_path / TOLD).unlink()
    (tmp_path / "runs/r1").mkdir(parents=True)
    told = tell_changed_defaults(tmp_path)
    assert len(told) == len(CHANGED_DEFAULTS) + 1 and "rework=fresh on the node" in told[1]
    assert tell_changed_defaults(tmp_path) == []
