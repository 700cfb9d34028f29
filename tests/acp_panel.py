"""An editor's panel as JSON-RPC lines: a second client, without the library that garrison itself uses."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import DEADLINE, PROGRAM, Place

EDITOR = {"name": "an editor", "version": "2"}


class Editor:
    """A running `garrison acp`, what it has shown, and what is to be answered to its questions."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child, self.updates, self.asked = child, list[dict[str, Any]](), list[dict[str, Any]]()
        self.grants = dict[str, str]()
        """Part of a question's title → label that is chosen; questions without are answered once a test does."""
        self._received: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers, self._count = dict[int, dict[str, Any]](), 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._received.put(json.loads(line))  # nothing else is on standard output
        self._received.put({})

    def send(self, method: str, **params: object) -> int:
        """Send a request; return its number."""
        self._count += 1
        self._write({"id": self._count, "method": method, "params": params})
        return self._count

    def notify(self, method: str, **params: object) -> None:
        self._write({"method": method, "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        self.child.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.child.stdin.flush()

    def choose(self, asked: dict[str, Any], label: str) -> None:
        """Answer a question with the option of a label, or dismiss it."""
        option = next((each["optionId"] for each in asked["params"]["options"] if each["name"] == label), None)
        outcome = {"outcome": "selected", "optionId": option} if option is not None else {"outcome": "cancelled"}
        self._write({"id": asked["id"], "result": {"outcome": outcome}})

    def step(self) -> None:
        """Take one message; fail if none comes."""
        message = self._received.get(timeout=DEADLINE)
        assert message, f"the agent has ended with {self.child.wait()}"
        if message.get("method") == "session/update":
            self.updates.append(message["params"]["update"])
        elif message.get("method") == "session/request_permission":
            self.asked.append(message)
            title = message["params"]["toolCall"]["title"]
            if (label := next((label for part, label in self.grants.items() if part in title), None)) is not None:
                self.choose(message, label)
        else:
            self._answers[message["id"]] = message

    def result_of(self, number: int) -> dict[str, Any]:
        """Return the answer to a request."""
        while number not in self._answers:
            self.step()
        return self._answers.pop(number)

    def call(self, method: str, **params: object) -> Any:
        """Return the result of a request."""
        answer = self.result_of(self.send(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    def error(self, method: str, **params: object) -> str:
        """Return the message of the error with which a request is answered."""
        answer = self.result_of(self.send(method, **params))
        assert "\n" not in answer["error"]["message"]
        return str(answer["error"]["message"])

    def prompt(self, session: str, text: str) -> str:
        """Send a message; return all that its turn has said."""
        before = len(self.updates)
        assert self.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}]) == {
            "stopReason": "end_turn"}
        return self.said(before)

    def said(self, since: int = 0) -> str:
        return "".join(update["content"]["text"] for update in self.updates[since:]
                       if update["sessionUpdate"] == "agent_message_chunk")

    def until(self, words: str, since: int = 0) -> str:
        """Return all that was said since some update, once it has these words."""
        while words not in self.said(since):
            self.step()
        return self.said(since)

    def until_asked(self, part: str) -> dict[str, Any]:
        """Return the question whose title has these words."""
        while not (found := [asked for asked in self.asked if part in asked["params"]["toolCall"]["title"]]):
            self.step()
        return found[-1]

    def hang_up(self) -> None:
        """Close the agent's input, as the end of an editor does, and wait for the agent's end."""
        self.child.stdin.close()
        assert self.child.wait(timeout=DEADLINE) == 0

    def calls(self) -> dict[str, str]:
        """Return the last status of each tool call."""
        return {update["toolCallId"]: update["status"] for update in self.updates
                if update["sessionUpdate"] in ("tool_call", "tool_call_update") and update.get("status")}

    def plan(self) -> list[str]:
        """Return the statuses of the last plan."""
        plans = [update["entries"] for update in self.updates if update["sessionUpdate"] == "plan"]
        return [entry["status"] for entry in plans[-1]]


@contextmanager
def editor(place: Place, *words: str, **env: str) -> Iterator[Editor]:
    """Yield an editor that has greeted `garrison acp`; its end closes the agent's input."""
    with subprocess.Popen([*PROGRAM, "acp", *words], cwd="/", env={**place.env, **env}, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        found = Editor(child)
        greeting = found.call("initialize", protocolVersion=1, clientInfo=EDITOR)
        assert greeting["protocolVersion"] == 1 and greeting["agentInfo"]["name"] == "garrison"
        assert greeting["agentCapabilities"]["loadSession"]
        assert set(greeting["agentCapabilities"]["sessionCapabilities"]) == {"list", "close", "resume"}
        try:
            yield found
        finally:
            child.stdin.close()
            try:
                child.wait(timeout=DEADLINE)
            finally:
                child.kill()


def begin_session(found: Editor, cwd: Path) -> str:
    return str(found.call("session/new", cwd=str(cwd), mcpServers=[])["sessionId"])
