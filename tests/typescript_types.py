"""Types of TypeScript declarations, as far as clients of forges publish the answers of an API with them.

Gitea's and Forgejo's clients are generated from their OpenAPI descriptions; GitLab has only a client that people keep.
`Types.check` compares a value with a declared type: an object may lack fields, and may not have others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|[\w$.]+|[{}\[\]<>()|&;:?,=]")
_HEAD = re.compile(r"^(?:export )?(?:declare )?(?:interface|type) (\w+)(<[^>]*>)? ?"
                   r"(?:extends ([^{]+?) (?=\{)|= |(?=\{))", re.MULTILINE)
_ATOMS: dict[str, tuple[type, ...]] = {"string": (str,), "number": (int, float), "boolean": (bool,),
                                       "null": (type(None),)}
_ANYTHING = {"unknown", "any", "object", "Date"}


@dataclass
class Type:
    """A type: a name with arguments, `[]`, `|`, `&`, a literal (`'`), or an object (`{`)."""

    kind: str
    parts: list[Type] = field(default_factory=list)
    text: str = ""
    fields: dict[str, Type] = field(default_factory=dict)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: Iterator[str] = (found[0] for found in _TOKEN.finditer(text))
        self.next = next(self._tokens, "")

    def take(self, wanted: str = "") -> str:
        token = self.next
        if wanted and token != wanted:
            raise ValueError(f"{token} instead of {wanted}")
        self.next = next(self._tokens, "")
        return token

    def has(self, token: str) -> bool:
        if self.next != token:
            return False
        self.take()
        return True

    def type(self) -> Type:
        self.has("|")
        parts = [self._joined()]
        while self.has("|"):
            parts.append(self._joined())
        return parts[0] if len(parts) == 1 else Type("|", parts)

    def _joined(self) -> Type:
        parts = [self._postfixed()]
        while self.has("&"):
            parts.append(self._postfixed())
        return parts[0] if len(parts) == 1 else Type("&", parts)

    def _postfixed(self) -> Type:
        made = self._primary()
        while self.next == "[":
            self.take()
            self.take("]")
            made = Type("[]", [made])
        return made

    def _primary(self) -> Type:
        token = self.take()
        if token == "(":
            made = self.type()
            self.take(")")
            return made
        if token == "{":
            return self._object()
        if token[:1] in "'\"":
            return Type("'", text=token[1:-1])
        arguments = []
        if self.has("<"):
            arguments = [self.type()]
            while self.has(","):
                arguments.append(self.type())
            self.take(">")
        return Type("[]", arguments) if token == "Array" else Type("name", arguments, token)

    def _object(self) -> Type:
        made = Type("{")
        while not self.has("}"):
            if self.next in {";", ","}:
                self.take()
                continue
            if self.has("["):  # an index signature
                while self.take() != "]":
                    pass
                self.take(":")
                made.parts = [self.type()]
                continue
            name = self.take().strip("'\"")
            self.has("?")
            self.take(":")
            made.fields[name] = self.type()
        return made


class Types:
    """The types that a file declares."""

    def __init__(self, text: str, *, optional: bool = False) -> None:
        """Parse; with `optional`, every value may be null, which OpenAPI 2 cannot say of what it describes."""
        self._optional = optional
        text = _COMMENT.sub("", text)
        self.types: dict[str, Type] = {}
        for head in _HEAD.finditer(text):
            if head[2]:
                continue  # generic
            try:
                body = _Parser(text[head.end():head.end() + 20_000]).type()
                self.types[head[1]] = Type("&", [_Parser(head[3]).type(), body]) if head[3] else body
            except ValueError:
                continue  # functions, conditional types

    def check(self, value: Any, wanted: str) -> list[str]:
        """Return what is wrong with a value of a named type."""
        return self._check(value, Type("name", text=wanted), wanted)

    def _check(self, value: Any, wanted: Type, at: str) -> list[str]:
        while wanted.kind == "name" and wanted.text in self.types:
            wanted = self.types[wanted.text]
        if value is None and self._optional:
            return []
        if wanted.kind == "[]":
            if not isinstance(value, list):
                return [f"{at}: {value!r:.40} is not a list"]
            return [problem for each in value for problem in self._check(each, wanted.parts[0], f"{at}[]")]
        if wanted.kind == "|":
            tried = [self._check(value, part, at) for part in wanted.parts]
            return [] if not all(tried) else min(tried, key=len)
        if wanted.kind == "'":
            return [] if value == wanted.text else [f"{at}: {value!r:.40} is not {wanted.text!r}"]
        return self._check_atom(value, wanted.text, at) if wanted.text in _ATOMS else \
            self._check_object(value, wanted, at)

    @staticmethod
    def _check_atom(value: Any, name: str, at: str) -> list[str]:
        right = isinstance(value, _ATOMS[name]) and isinstance(value, bool) is (name == "boolean")
        return [] if right else [f"{at}: {value!r:.40} is no {name}"]

    def _check_object(self, value: Any, wanted: Type, at: str) -> list[str]:
        known = self._fields(wanted)
        if known is None:
            return []
        if not isinstance(value, dict):
            return [f"{at}: {value!r:.40} is not an object"]
        problems = []
        for name, each in value.items():
            if name not in known:
                problems.append(f"{at}: there is no field {name}")
            else:
                problems += self._check(each, known[name], f"{at}.{name}")
        return problems

    def _fields(self, wanted: Type) -> dict[str, Type] | None:
        """Return the fields of an object type, {} for what is none, None for what may be anything."""
        if wanted.kind == "{":
            return wanted.fields if wanted.fields or not wanted.parts else None
        if wanted.kind == "&":
            found: dict[str, Type] = {}
            for part in wanted.parts:
                found |= self._fields(part) or {}
            return found
        if wanted.text in {"MappedOmit", "Omit", "Partial", "Pick", "Required"}:
            return self._fields(wanted.parts[0])
        if wanted.text in _ANYTHING or wanted.text == "Record":
            return None
        named = self.types.get(wanted.text)
        if named is None:
            return None  # an enum, or something that could not be read
        return self._fields(named)
