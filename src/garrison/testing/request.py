"""What a request to the Messages API holds, as a script wants to ask it. Pure: a parsed body in, words out.

A conversation's position is read from the request itself, never remembered: `step` is the number of assistant messages
since the last prompt. So a client that was killed and resumes from its transcript is answered where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_NOT_SPOKEN = ("<system-reminder>", "[Request interrupted by user", "[Your previous response had no visible output",
               "[structured-output-enforce]", "Output token limit hit.", "Your response above was stopped by")
"""How texts begin that the CLI writes into the user's messages by itself."""


@dataclass(frozen=True)
class Asked:
    """One `POST /v1/messages`."""

    number: int
    """Counts the requests of this server, from 1."""
    body: dict[str, Any]
    key: str = ""
    """What the script's `key` found in the system text or the first prompt, such as a node's name."""

    @property
    def model(self) -> str:
        """The model that was asked."""
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        """Whether the answer is to come as server-sent events."""
        return bool(self.body.get("stream"))

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that the model may use."""
        return tuple(str(tool.get("name")) for tool in self.body.get("tools") or [])

    @property
    def system(self) -> str:
        """The whole system text, messages of the role `system` included."""
        inline = [_text(message.get("content")) for message in self._messages if message.get("role") == "system"]
        return "\n".join([_text(self.body.get("system")), *inline]).strip()

    @property
    def prompt(self) -> str:
        """The last thing a person (or garrison) said; reminders and tool results are not that."""
        return self.prompts[-1] if self.prompts else ""

    @property
    def prompts(self) -> tuple[str, ...]:
        """Every prompt of the conversation, oldest first."""
        return tuple(text for message in self._messages if (text := _prompt(message)) is not None)

    @property
    def step(self) -> int:
        """How many times the model has spoken since the last prompt; 0 = it is its first turn."""
        spoken = 0
        for message in reversed(self._messages):
            if message.get("role") == "assistant":
                spoken += 1
            elif _prompt(message) is not None:
                break
        return spoken

    @property
    def results(self) -> tuple[dict[str, Any], ...]:
        """The tool results since the model last spoke, each `{"tool_use_id", "text", "is_error"}`."""
        found: list[dict[str, Any]] = []
        for message in reversed(self._messages):
            if message.get("role") == "assistant":
                break
            found = [*_results(message), *found]
        return tuple(found)

    @property
    def result(self) -> str:
        """The text of these tool results together."""
        return "\n".join(result["text"] for result in self.results)

    @property
    def _messages(self) -> list[dict[str, Any]]:
        messages = self.body.get("messages")
        return [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text(content: Any) -> str:
    return "\n".join(str(block.get("text", "")) for block in _blocks(content) if block.get("type") == "text")


def _prompt(message: dict[str, Any]) -> str | None:
    """The prompt in a user message; None where it holds only tool results and what the CLI wrote itself."""
    if message.get("role") != "user":
        return None
    texts = [str(block.get("text", "")) for block in _blocks(message.get("content")) if block.get("type") == "text"]
    spoken = [text for text in texts if not text.lstrip().startswith(_NOT_SPOKEN)]
    return spoken[-1] if spoken else None


def _results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"tool_use_id": block.get("tool_use_id"), "text": _text(block.get("content")),
             "is_error": bool(block.get("is_error"))}
            for block in _blocks(message.get("content")) if block.get("type") == "tool_result"]
