"""A handler: `example.words` counts the words of a file into the context and into a file beside it.

    count [type="example.words", file="README.md"]
"""

from __future__ import annotations

from typing import Any


def count_words(call: Any) -> dict[str, Any]:
    """Count the words of the file that the node names."""
    path = call.run.tree / str(call.attrs.get("file", "README.md"))
    if not path.is_file():
        return {"status": "fail", "failure_reason": f"there is no file {path.name} to count"}
    count = len(path.read_text().split())
    path.with_suffix(".words").write_text(f"{count}\n")
    return {"status": "success", "notes": f"{count} words", "context_updates": {"example.words": count}}
