"""The tools that are always there: files, git, commands. Each takes and gives JSON's shapes.

The rule of this room: a relative path is below the directory that the workflow works in, and no tool leaves it; whoever
wants more says so with a command.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from garrison.errors import UsageError
from garrison.records import atomic

MAX_READ = 2_000_000
MAX_HITS = 1_000


class CommandFailed(Exception):
    """A command ended with another exit code than 0."""


class Toolbox:
    """The built-in tools, working in `root`; `tools()` gives them by name."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def tools(self) -> Mapping[str, Any]:
        """Name → callable."""
        return {"files.read": self.read, "files.write": self.write, "files.list": self.list_files,
                "files.edit": self.edit,
                "text.search": self.search, "text.lines": self.lines,
                "text.join": self.join, "json.parse": self.parse, "git.log": self.git_log,
                "command.run": self.run}

    def _below(self, path: str) -> Path:
        found = (self.root / path).resolve()
        if found != self.root and self.root not in found.parents:
            raise UsageError(f"{path!r:.200} lies outside of {self.root}; use command.run for that")
        return found

    def read(self, path: str) -> dict[str, Any]:
        """The text of a file: {path, text, bytes}; at most 2 MB."""
        file = self._below(path)
        size = file.stat().st_size
        if size > MAX_READ:
            raise UsageError(f"{path} has {size} bytes, more than {MAX_READ}")
        return {"path": path, "text": file.read_text(errors="replace"), "bytes": size}

    def write(self, path: str, text: str) -> dict[str, Any]:
        """Write a text file, whole or not at all, its folders with it: {path, bytes}."""
        file = self._below(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        raw = text.encode()
        atomic.write(file, raw)
        return {"path": path, "bytes": len(raw)}

    def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replace the one place of a text file that reads `old` with `new`: {path, bytes}."""
        text = self.read(path)["text"]
        if text.count(old) != 1:
            raise UsageError(f"{path} has {text.count(old)} places that read {old!r:.80}; name text that is there once")
        return self.write(path, text.replace(old, new))

    def list_files(self, pattern: str = "**/*") -> dict[str, Any]:
        """The files that a glob pattern fits, sorted: {files, count}."""
        found = sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern)
                       if path.is_file() and ".git" not in path.relative_to(self.root).parts)
        return {"files": found, "count": len(found)}

    def search(self, expression: str, pattern: str = "**/*") -> dict[str, Any]:
        """The lines that a regular expression is found in: {hits: [{path, line, text}], count, cut}."""
        wanted = _expression(expression)
        hits = []
        for name in self.list_files(pattern)["files"]:
            file = self.root / name
            if file.stat().st_size <= MAX_READ:
                hits += [{"path": name, "line": number, "text": line.strip()[:300]}
                         for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
                         if wanted.search(line)]
        return {"hits": hits[:MAX_HITS], "count": len(hits), "cut": len(hits) > MAX_HITS}

    def lines(self, text: str, expression: str) -> dict[str, Any]:
        """The lines of a text that a regular expression is found in: {lines, count, text}."""
        wanted = _expression(expression)
        found = [line for line in text.splitlines() if wanted.search(line)]
        return {"lines": found, "count": len(found), "text": "\n".join(found)}

    def join(self, parts: list[Any], separator: str = "\n") -> str:
        """Texts in one; what is no text as JSON."""
        return separator.join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts)

    def parse(self, text: str) -> Any:
        """What a JSON text says."""
        return json.loads(text)

    async def git_log(self, limit: int = 20, revisions: str = "HEAD") -> dict[str, Any]:
        """The latest commits: {commits: [{commit, author, at, subject}]}."""
        if revisions.startswith("-"):
            raise UsageError("revisions may not begin with a dash")
        done = await self.run(["git", "log", f"-n{int(limit)}", "--format=%H%x1f%an%x1f%aI%x1f%s", revisions, "--"])
        return {"commits": [dict(zip(("commit", "author", "at", "subject"), line.split("\x1f"), strict=True))
                            for line in done["stdout"].splitlines()]}

    async def run(self, command: list[str] | str, check: bool = True, cwd: str = ".") -> dict[str, Any]:
        """Run a command (words, or text for `sh -c`): {exit_code, stdout, stderr}. With `check`, another code than 0
        fails the step."""
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        process = await asyncio.create_subprocess_exec(
            *words, cwd=self._below(cwd), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True)
        try:
            out, err = await process.communicate()
        except BaseException:
            if process.returncode is None:  # it is ours and not reaped, so the group is still its own
                _end(process.pid)
            await process.wait()
            raise
        told: dict[str, Any] = {"exit_code": process.returncode, "stdout": out.decode(errors="replace"),
                "stderr": err.decode(errors="replace")}
        if check and process.returncode:
            tail = " ".join((told["stderr"] or told["stdout"]).split())[-300:]
            raise CommandFailed(f"{words[0]} ended with exit code {process.returncode}{f': {tail}' if tail else ''}")
        return told


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r:.80} is no regular expression: {error}") from error


def _end(group: int) -> None:
    import contextlib
    import signal

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
