"""Request to a model, as a script inspects it, in the same form for all APIs. Pure.

A conversation's position is derived from the request itself, never remembered: `step` is the number of assistant
messages since the last prompt. So a client that was killed and resumes from its transcript gets the next answer.
"""

from __future__ import annotations

from garrison.testing.turn import Block
from garrison.values import Value

_CLI_TEXTS = ("<system-reminder>", "[Request interrupted by user", "[Your previous response had no visible output",
               "[structured-output-enforce]", "Output token limit hit.", "Your response above was stopped by",
              "Continue from where you left off.", "<environment_context>", "<user_instructions>", "<permissions",
              "<turn_aborted>", "<session_context>")
"""Starts of the texts that agents' CLIs add to user messages."""


class RequestMessage(Value):
    """One message of an author."""

    role: str
    content: tuple[Block, ...] = ()

    @property
    def words(self) -> list[str]:
        return [block.text for block in self.content if block.type == "text"]

    @property
    def prompt(self) -> str | None:
        """Return the prompt in a user message; None if it holds only tool results and texts of the CLI."""
        spoken = [text for text in self.words if not text.lstrip().startswith(_CLI_TEXTS)]
        return spoken[-1] if spoken and self.role == "user" else None


class Request(Value):
    """One call of a model."""

    model: str = ""
    stream: bool = False
    tools: tuple[str, ...] = ()
    told: str = ""
    """The system text outside the messages."""
    messages: tuple[RequestMessage, ...] = ()
    number: int = 0
    """Number of the request on this server, from 1."""
    body: object = None
    """The request as sent, in the form of its API."""
    key: str = ""
    """Match of the script's `key` in the system text or the first prompt, such as a node's name."""

    @property
    def system(self) -> str:
        inline = ["\n".join(message.words) for message in self.messages if message.role == "system"]
        return "\n".join([self.told, *inline]).strip()

    @property
    def prompt(self) -> str:
        """Return the last prompt of the user (or garrison); reminders and tool results do not count."""
        return self.prompts[-1] if self.prompts else ""

    @property
    def prompts(self) -> tuple[str, ...]:
        """Return every prompt of the conversation, oldest first."""
        return tuple(text for message in self.messages if (text := message.prompt) is not None)

    @property
    def spoken(self) -> int:
        """Return how many times the model has answered in this conversation."""
        return sum(message.role == "assistant" for message in self.messages)

    @property
    def step(self) -> int:
        """Return how many times the model has answered since the last prompt; 0 = this is its first turn."""
        answers = 0
        for message in reversed(self.messages):
            if message.role == "assistant":
                answers += 1
            elif message.prompt is not None:
                break
        return answers

    @property
    def results(self) -> tuple[Block, ...]:
        """Return the tool results since the model's last answer."""
        results: list[Block] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            results = [*(block for block in message.content if block.type == "tool_result"), *results]
        return tuple(results)

    @property
    def result(self) -> str:
        return "\n".join(block.text for block in self.results)
