"""The real SDK and the real CLI against a scripted model, in a network namespace: run by `scripts/test` through
`python -m garrison.testing.isolation -- pytest tests/claude`. Outside of it everything here is skipped."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.conversation.files import AttemptFiles
from garrison.testing.model_server import ModelServer, RecordedRequest
from garrison.testing.request import Request
from garrison.testing.script import Script
from garrison.testing.turn import Fault, Turn
from support import PRELOADED, Place, load, processes

ISOLATED = "GARRISON_ISOLATION" in os.environ
if ISOLATED:
    PRELOADED.append("garrison.agents.claude.connection")
Player = Callable[[Request], "Turn | Fault | str"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Never let the CLI near a network."""
    for item in items:
        if not ISOLATED and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs `python -m garrison.testing.isolation -- pytest …`"))


@dataclass
class Scene:
    """A place and the model of its Claude agents; `players` are the nodes' scripts."""

    place: Place
    players: dict[str, Player] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = ModelServer(Script(self._play, key=r"(?:agent of node|worked on node) (\w+)"))
        self.place.env = {**self.place.env, "ANTHROPIC_BASE_URL": self.server.url,
                          **{name: os.environ[name] for name in ("ANTHROPIC_API_KEY", "API_TIMEOUT_MS")}}
        self.configure("")

    def configure(self, settings: str) -> None:
        """Write config.toml: the claude agent's settings (TOML lines)."""
        retries = '[agents.claude.set]\nCLAUDE_CODE_MAX_RETRIES = "1"\n'
        self.place.configure(f"\n[agents.claude]\n{settings}\n{retries}")

    def _play(self, asked: Request) -> Turn | Fault | str:
        part = "validator" if "You validate in a garrison" in asked.system else ""
        return self.players[f"{asked.key}{part and '-' + part}"](asked)

    def graph(self, **nodes: str) -> Path:
        """Write a graph of independent claude nodes; the values are further attributes."""
        lines = ["digraph crew { flow=dag; allow_empty=true", "start [shape=Mdiamond]; exit [shape=Msquare]"]
        for name, more in nodes.items():
            lines.append(f'{name} [shape=box, agent=claude, prompt="Do {name}."{more and ", " + more}]')
            lines.append(f"start -> {name} -> exit")
        path = self.place.root / "crew.dot"
        path.write_text("\n".join([*lines, "}"]))
        return path

    def launch(self, graph: Path, *more: object, **env: str) -> Any:
        """Launch it as run r1."""
        return self.place.launch(graph, "r1", "--max-agents", "2", *more, gate="test -f calc.py", **env)

    def launch_nodes(self, *more: object, **attributes: str) -> Any:
        """Launch a run of all players' nodes, without rework unless they have other attributes."""
        return self.launch(self.graph(**{name: attributes.get(name, "rework=none") for name in self.players}), *more)

    def calls(self, node: str) -> list[RecordedRequest]:
        """Return the requests of a node's sessions to the model, in order."""
        return [one for one in self.server.messages if re.search(rf"agent of node {node}\b", one.asked.system)]

    def first_call(self, words: str) -> RecordedRequest:
        """Return the first request of node a whose prompt has these words."""
        return next(one for one in self.calls("a") if words in one.asked.prompt)

    def folder(self, node: str, attempt: int = 1) -> Path:
        """Return the folder of an attempt's sessions."""
        return self.place.home / "runs/r1/nodes" / node / str(attempt) / "claude"

    def endings(self, node: str) -> list[str]:
        """Return how the sessions of the node's first attempt ended."""
        return [one.kind for one in AttemptFiles(self.folder(node).parent).read_endings()]

    def cli(self, node: str) -> int | None:
        """Return the pid of the node's CLI, if it runs."""
        pid = load(self.folder(node) / "process.json").get("pid")
        return pid if any(one.pid == pid for one in processes()) else None

    def sleepers(self) -> set[int]:
        """Return the processes of agents that run `sleep 987`."""
        return {one.pid for one in processes() if "sleep 987" in one.argv
                and str(self.place.home) in one.environ.get("GARRISON_HOME", "")}

    def connections(self) -> list[int]:
        """Return the processes that run the SDK."""
        return [one.pid for one in self.place.living_processes() if "garrison.agents.claude.connection" in one.argv]


@pytest.fixture
def scene(place: Place) -> Iterator[Scene]:
    """Yield a scene with the plain-process terminal."""
    made = Scene(place)
    yield made
    made.server.close()
