"""Request to a model, as a script inspects it, in the form of the Messages API. Pure.

A conversation's position is derived from the request itself, never remembered: `step` is the number of assistant
messages since the last prompt. So a client that was killed and resumes from its transcript gets the next answer.
"""

from __future__ import annotations

from typing import Any

from garrison.values import Value

_CLI_TEXTS = ("<system-reminder>", "[Request interrupted by user", "[Your previous response had no visible output",
               "[structured-output-enforce]", "Output token limit hit.", "Your response above was stopped by",
              "Continue from where you left off.", "<environment_context>", "<user_instructions>", "<permissions",
              "<turn_aborted>", "<session_context>")
"""Beginnings of the texts that the CLIs of agents themselves add to user messages."""


class Request(Value):
    """One `POST /v1/messages`."""

    number: int
    """Number of the request on this server, from 1."""
    body: dict[str, Any]
    key: str = ""
    """Match of the script's `key` in the system text or the first prompt, such as a node's name."""

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(str(tool.get("name")) for tool in self.body.get("tools") or [])

    @property
    def system(self) -> str:
        inline = [_text(message.get("content")) for message in self._messages if message.get("role") == "system"]
        return "\n".join([_text(self.body.get("system")), *inline]).strip()

    @property
    def prompt(self) -> str:
        """Return the last prompt of a person (or garrison); reminders and tool results do not count."""
        return self.prompts[-1] if self.prompts else ""

    @property
    def prompts(self) -> tuple[str, ...]:
        """Return every prompt of the conversation, oldest first."""
        return tuple(text for message in self._messages if (text := _prompt(message)) is not None)

    @property
    def step(self) -> int:
        """Return how many times the model has answered since the last prompt; 0 = this is its first turn."""
        answers = 0
        for message in reversed(self._messages):
            if message.get("role") == "assistant":
                answers += 1
            elif _prompt(message) is not None:
                break
        return answers

    @property
    def results(self) -> tuple[dict[str, Any], ...]:
        """Return the tool results since the model's last answer, each `{"tool_use_id", "text", "is_error"}`."""
        results: list[dict[str, Any]] = []
        for message in reversed(self._messages):
            if message.get("role") == "assistant":
                break
            results = [*_results(message), *results]
        return tuple(results)

    @property
    def result(self) -> str:
        return "\n".join(result["text"] for result in self.results)

    @property
    def _messages(self) -> list[dict[str, Any]]:
        messages = self.body.get("messages")
        return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _text(content: Any) -> str:
    return "\n".join(str(block.get("text", "")) for block in _blocks(content) if block.get("type") == "text")


def _prompt(message: dict[str, Any]) -> str | None:
    """Return the prompt in a user message; None if it holds only tool results and texts of the CLI."""
    if message.get("role") != "user":
        return None
    texts = [str(block.get("text", "")) for block in _blocks(message.get("content")) if block.get("type") == "text"]
    spoken = [text for text in texts if not text.lstrip().startswith(_CLI_TEXTS)]
    return spoken[-1] if spoken else None


def _results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"tool_use_id": block.get("tool_use_id"), "text": _text(block.get("content")),
             "is_error": bool(block.get("is_error"))}
            for block in _blocks(message.get("content")) if block.get("type") == "tool_result"]
