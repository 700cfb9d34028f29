"""Text of an agent, passed on in pieces while it is being written. Pure but for the callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

PIECE = 40
"""Characters that are passed on together; less at the end of a line and of the text."""


class TextStream:
    """Passes on `partial` events in larger pieces, and of the `text` that follows them only what is missing."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._written = self._held = ""

    def receive(self, event: Mapping[str, Any]) -> None:
        """Take an event of a session; others than texts are ignored."""
        if event["kind"] == "partial":
            self._written += str(event["text"])
            self._held += str(event["text"])
            if len(self._held) >= PIECE or self._held.endswith("\n"):
                self._flush()
        elif event["kind"] == "text":
            text = str(event["text"])
            # After a broken stream the response is requested again, and may differ.
            self._held += text[len(self._written):] if text.startswith(self._written) else f"\n{text}"
            self._written = ""
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, ""
        if held:
            self._put(held)
