"""`garrison serve` with a scripted butler and crew: the delegation, its events and the server are real.

    python scripted_butler.py HOME

Prints the page's address. A message with "slow" in it is answered until it is cancelled, one with "Stop r1" by a
proposal; all others by triage. Commands that were agreed to are written to HOME/ran instead of being run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from garrison.agents.graph import SessionSpec
from garrison.delegation.butler import AgentOrchestrator
from garrison.delegation.confirmations import Confirmations
from garrison.delegation.conversation import Conversation
from garrison.delegation.specialists import read_crew
from garrison.web.access import WRITE, load_tokens
from garrison.web.server import Endpoint, serve

ORDERS = json.dumps({"delegations": [{"intent": "delegate_triage", "reasoning": "triage knows"}], "reasoning": "so",
                     "confidence": 0.9})


class Played:
    """A session with scripted answers."""

    def __init__(self, spec: SessionSpec, confirm: Confirmations) -> None:
        self.spec, self.confirm = spec, confirm

    async def connect(self) -> None:
        return

    async def ask(self, content: str) -> AsyncIterator[dict[str, Any]]:
        if self.spec.node_id == "butler":
            said = ORDERS if content.startswith("CLASSIFY") else "One agent died and came back."
            yield {"kind": "text", "text": said}
            return
        yield {"kind": "text", "text": "<img src=x onerror=alert(1)> I look."}
        if "Stop r1" in content:
            self.confirm.propose(["stop", "r1"])
        if "and r2" in content:
            self.confirm.propose(["stop", "r2"])
        if "slow" in content:
            await asyncio.Event().wait()

    async def close(self) -> None:
        return


def butler(home: Path, name: str, _run: str) -> AgentOrchestrator:
    async def run(words: Sequence[str]) -> str:
        with (home / "ran").open("a") as file:
            file.write(f"{name}: {' '.join(words)}\n")
        return "r1 is stopped"

    confirm = Confirmations(run)
    return AgentOrchestrator(read_crew(home), Conversation(home / "conversations", name), confirm=confirm,
                             connect=partial(Played, confirm=confirm))


def main(home: Path) -> None:
    tokens = load_tokens(home)
    asyncio.run(serve(home, Endpoint(), tokens, lambda port: print(
        f"http://127.0.0.1:{port}/?token={tokens[WRITE]}", flush=True), open_butler=butler))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
