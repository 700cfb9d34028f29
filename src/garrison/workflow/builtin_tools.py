"""Built-in tools: files, git, commands. Arguments and results are JSON data.

A relative path is resolved in the workflow's working directory, and no file tool leaves it; a command may.
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
    """A command ended with an exit code other than 0."""


class Toolbox:
    """The built-in tools, working in `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def tools(self) -> Mapping[str, Any]:
        """Return name → callable."""
        return {"files.read": self.read, "files.write": self.write, "files.list": self.list_files,
                "files.edit": self.edit,
                "text.search": self.search, "text.lines": self.lines,
                "text.join": self.join, "json.parse": self.parse, "git.log": self.git_log,
                "command.run": self.run}

    def _below(self, path: str) -> Path:
        resolved = (self.root / path).resolve()
        if resolved != self.root and self.root not in resolved.parents:
            raise UsageError(f"{path!r:.200} is outside {self.root}; use command.run for that")
        return resolved

    def read(self, path: str) -> dict[str, Any]:
        """Return the text of a file: {path, text, bytes}; at most 2 MB."""
        file = self._below(path)
        size = file.stat().st_size
        if size > MAX_READ:
            raise UsageError(f"{path} has {size} bytes; the limit is {MAX_READ}")
        return {"path": path, "text": file.read_text(errors="replace"), "bytes": size}

    def write(self, path: str, text: str) -> dict[str, Any]:
        """Write a text file atomically, creating its folders: {path, bytes}."""
        file = self._below(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        raw = text.encode()
        atomic.write(file, raw)
        return {"path": path, "bytes": len(raw)}

    def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replace the single occurrence of `old` in a text file by `new`: {path, bytes}."""
        text = self.read(path)["text"]
        if text.count(old) != 1:
            raise UsageError(f"{path} contains {old!r:.80} {text.count(old)} times; give text that occurs once")
        return self.write(path, text.replace(old, new))

    def list_files(self, pattern: str = "**/*") -> dict[str, Any]:
        """Return the files that match a glob pattern, sorted: {files, count}."""
        files = sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern)
                       if path.is_file() and ".git" not in path.relative_to(self.root).parts)
        return {"files": files, "count": len(files)}

    def search(self, expression: str, pattern: str = "**/*") -> dict[str, Any]:
        """Return the lines of files that match a regular expression: {hits: [{path, line, text}], count, cut}."""
        regex = _expression(expression)
        hits = []
        for name in self.list_files(pattern)["files"]:
            file = self.root / name
            if file.stat().st_size <= MAX_READ:
                hits += [{"path": name, "line": number, "text": line.strip()[:300]}
                         for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
                         if regex.search(line)]
        return {"hits": hits[:MAX_HITS], "count": len(hits), "cut": len(hits) > MAX_HITS}

    def lines(self, text: str, expression: str) -> dict[str, Any]:
        """Return the lines of a text that match a regular expression: {lines, count, text}."""
        regex = _expression(expression)
        matches = [line for line in text.splitlines() if regex.search(line)]
        return {"lines": matches, "count": len(matches), "text": "\n".join(matches)}

    def join(self, parts: list[Any], separator: str = "\n") -> str:
        """Join texts; other values are written as JSON."""
        return separator.join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts)

    def parse(self, text: str) -> Any:
        """Return the value of a JSON text."""
        return json.loads(text)

    async def git_log(self, limit: int = 20, revisions: str = "HEAD") -> dict[str, Any]:
        """Return the latest commits: {commits: [{commit, author, at, subject}]}."""
        if revisions.startswith("-"):
            raise UsageError("revisions may not begin with a dash")
        result = await self.run(["git", "log", f"-n{int(limit)}", "--format=%H%x1f%an%x1f%aI%x1f%s", revisions, "--"])
        return {"commits": [dict(zip(("commit", "author", "at", "subject"), line.split("\x1f"), strict=True))
                            for line in result["stdout"].splitlines()]}

    async def run(self, command: list[str] | str, check: bool = True, cwd: str = ".") -> dict[str, Any]:
        """Run a command (a list of words, or text for `sh -c`): {exit_code, stdout, stderr}. With `check`, an exit
        code other than 0 fails the step.
        """
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        process = await asyncio.create_subprocess_exec(
            *words, cwd=self._below(cwd), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True)
        try:
            out, err = await process.communicate()
        except BaseException:
            if process.returncode is None:  # not reaped yet, so the process group still belongs to it
                _kill_group(process.pid)
            await process.wait()
            raise
        result: dict[str, Any] = {"exit_code": process.returncode, "stdout": out.decode(errors="replace"),
                                  "stderr": err.decode(errors="replace")}
        if check and process.returncode:
            tail = " ".join((result["stderr"] or result["stdout"]).split())[-300:]
            raise CommandFailed(f"{words[0]} ended with exit code {process.returncode}{f': {tail}' if tail else ''}")
        return result


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r:.80} is not a regular expression: {error}") from error


def _kill_group(group: int) -> None:
    import contextlib
    import signal

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
