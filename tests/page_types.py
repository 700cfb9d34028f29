"""Types of the page's data, written from the records that the server sends: src/garrison/web/static/records.d.ts.

    python -m tests.page_types            write the file again
    python -m tests.page_types --check    exit 1 if it is not what the records say (a unit test asks)
"""

from __future__ import annotations

import argparse
import enum
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from garrison.launch.disk import RunDisk
from garrison.schedules.starts import ShownSchedule
from garrison.values import Value
from garrison.views.page_view import Parts, WholeNode
from garrison.web.actions import ListedLessons, ListedPlans
from garrison.web.begin import Beginning, StartOffer
from garrison.web.node import LogPiece, NodeDetail, TranscriptPiece
from garrison.web.run_stream import Beat, RunSnapshot, StreamChange

FILE = Path(__file__).resolve().parents[1] / "src/garrison/web/static/records.d.ts"
ROOTS: tuple[type[Value], ...] = (
    RunSnapshot, Parts, WholeNode, StreamChange, Beat, NodeDetail, LogPiece, TranscriptPiece, StartOffer, Beginning,
    ListedLessons, ListedPlans, ShownSchedule, RunDisk)
"""What the server sends as JSON."""
HEAD = "// Written by tests/page_types.py from the records that the server sends; not by hand.\n\n"
NAMES: dict[Any, str] = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


class Writer:
    """Interfaces of the structs that are met, each once."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def name(self, kind: Any) -> str:
        """Return a type as TypeScript has it; `unknown` for what may be anything."""
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return " | ".join(dict.fromkeys(self.name(each) for each in args if each is not msgspec.UnsetType))
        if origin is Literal:
            return " | ".join(f'"{each}"' for each in args)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return f"Record<string, {self.name(args[1])}>"
        if origin is tuple and args[-1] is not Ellipsis:
            return f"[{', '.join(map(self.name, args))}]"
        if isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset)):
            return f"Array<{self.name(args[0])}>"
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return " | ".join(f'"{each.value}"' for each in kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.interface(kind)
        return NAMES.get(kind, "unknown") if not isinstance(kind, TypeVar) else "unknown"

    def interface(self, kind: type[msgspec.Struct]) -> str:
        """Write the interface of a struct, unless it is there; return its name."""
        if kind.__name__ not in self.found:
            self.found[kind.__name__] = ""  # a struct that holds itself
            hints = typing.get_type_hints(kind)
            lines = [f"  {wire}{'?' if _may_be_absent(kind, field, hints[field]) else ''}: {self.name(hints[field])};"
                     for field, wire in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)]
            self.found[kind.__name__] = "\n".join([f"export interface {kind.__name__} {{", *lines, "}", ""])
        return kind.__name__


def _may_be_absent(kind: type[msgspec.Struct], field: str, hint: Any) -> bool:
    """Return whether JSON may lack a field: one that may be unset, or is left out at its default."""
    defaults = kind.__struct_defaults__  # of the last fields
    named = kind.__struct_fields__[-len(defaults):] if defaults else ()
    has_default = dict(zip(named, defaults, strict=True)).get(field, msgspec.NODEFAULT) is not msgspec.NODEFAULT
    return msgspec.UnsetType in get_args(hint) or (kind.__struct_config__.omit_defaults and has_default)


def write() -> str:
    """Return the text of the file."""
    writer = Writer()
    for root in ROOTS:
        writer.name(root)
    return HEAD + "\n".join(text for _, text in sorted(writer.found.items()))


def main(words: list[str] | None = None) -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args(words).check:
        return int(FILE.read_text(encoding="utf-8") != write())
    FILE.write_text(write(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
