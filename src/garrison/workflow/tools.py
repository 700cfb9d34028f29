"""Tools of workflows: the built-in ones (files, git, commands), and Python functions.

Arguments and results are JSON data. A relative path is resolved in the workflow's working directory; no file tool
leaves it or changes git's own files there. A command runs in a sandbox if the toolbox has one.

A Python function is named `package.module:function`, or `path/to/file.py:function`. A module is searched for next to
the workflow's file first, then on `sys.path`; a file's path is relative to the workflow's file. A missing tool, or one
that fails to load, is a one-line error that names the tool.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from garrison.errors import UsageError
from garrison.pipeline.handlers.tool import wait_readable
from garrison.sandbox.confine import Confined
from garrison.sandbox.place import Mode
from garrison.spelling import correction
from garrison.system import untrusted
from garrison.system.processes import signal_group
from garrison.workflow.errors import ToolNotFoundError
from garrison.workflow.models import Workflow

if TYPE_CHECKING:
    from garrison.sandbox.checkout import CheckoutCommands
    from garrison.sandbox.network import NetworkPlace


MAX_READ = 2_000_000
MAX_OUTPUT = 16 << 20
"""Bytes of each output of a command that are kept; the rest is read and dropped."""
MAX_HITS = 1_000


class CommandFailed(Exception):
    """A command ended with an exit code other than 0."""


class FileText(TypedDict):
    """Result of `files.read`."""

    path: str
    text: str
    bytes: int


class FileList(TypedDict):
    """Result of `files.list`."""

    files: list[str]
    count: int


class CommandResult(TypedDict):
    """Result of `command.run`."""

    exit_code: int
    stdout: str
    stderr: str


class Toolbox:
    """The built-in tools, working in `root`.

    `commands` confines their commands; without it they run unconfined, as in a process that is itself confined.
    """

    def __init__(self, root: Path, commands: CheckoutCommands | None = None) -> None:
        self.root, self._commands = root.resolve(), commands

    def tools(self) -> Mapping[str, Callable[..., object]]:
        """Return name → callable."""
        return {"files.read": self.read, "files.write": self.write, "files.list": self.list_files,
                "files.edit": self.edit,
                "text.search": self.search, "text.lines": self.lines,
                "text.join": self.join, "json.parse": self.parse, "git.log": self.git_log,
                "command.run": self.run}

    def _below(self, path: str) -> Path:
        resolved = (self.root / path).resolve()
        if resolved != self.root and self.root not in resolved.parents:
            raise UsageError(f"{path!r:.200} is outside {self.root}; name a path below it, or another --workdir")
        return resolved

    def _name(self, path: str) -> str:
        """Return a path below the working directory with its present links resolved; later ones are not followed."""
        return str(self._below(path).relative_to(self.root))

    def read(self, path: str) -> FileText:
        """Return the text of a file: {path, text, bytes}; at most 2 MB."""
        file = self._below(path)
        size = file.stat().st_size
        if size > MAX_READ:
            raise UsageError(f"{path} has {size} bytes; the limit is {MAX_READ}")
        raw = untrusted.read(self.root, self._name(path), MAX_READ)
        if raw is None:
            raise FileNotFoundError(file)
        return {"path": path, "text": raw.decode(errors="replace"), "bytes": len(raw)}

    def write(self, path: str, text: str) -> dict[str, object]:
        """Write a text file atomically, creating its folders: {path, bytes}."""
        name = self._name(path)
        # In lower case: on a file system that ignores case git also reads `.GIT/config`.
        if any(part.lower() == ".git" for part in Path(name).parts):
            raise UsageError(f"{path!r:.200} belongs to git; change it with git commands")
        raw = text.encode()
        untrusted.write(self.root, name, raw, as_edit=True)
        return {"path": path, "bytes": len(raw)}

    def edit(self, path: str, old: str, new: str) -> dict[str, object]:
        """Replace the single occurrence of `old` in a text file by `new`: {path, bytes}."""
        text = self.read(path)["text"]
        if text.count(old) != 1:
            raise UsageError(f"{path} contains {old!r:.80} {text.count(old)} times; give text that occurs once")
        return self.write(path, text.replace(old, new))

    def list_files(self, pattern: str = "**/*") -> FileList:
        """Return the files that match a glob pattern, sorted: {files, count}."""
        files = sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern)
                       if path.is_file() and ".git" not in path.relative_to(self.root).parts)
        return {"files": files, "count": len(files)}

    def search(self, expression: str, pattern: str = "**/*") -> dict[str, object]:
        """Return the lines of files that match a regular expression: {hits: [{path, line, text}], count, cut}."""
        regex = _expression(expression)
        hits = []
        for name in self.list_files(pattern)["files"]:
            file = self.root / name
            if file.stat().st_size <= MAX_READ:
                text = untrusted.read_text(self.root, name, MAX_READ)
                hits += [{"path": name, "line": number, "text": line.strip()[:300]}
                         for number, line in enumerate(text.splitlines(), 1) if regex.search(line)]
        return {"hits": hits[:MAX_HITS], "count": len(hits), "cut": len(hits) > MAX_HITS}

    def lines(self, text: str, expression: str) -> dict[str, object]:
        """Return the lines of a text that match a regular expression: {lines, count, text}."""
        regex = _expression(expression)
        matches = [line for line in text.splitlines() if regex.search(line)]
        return {"lines": matches, "count": len(matches), "text": "\n".join(matches)}

    def join(self, parts: list[object], separator: str = "\n") -> str:
        """Join texts; other values are written as JSON."""
        return separator.join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts)

    def parse(self, text: str) -> object:
        return json.loads(text)

    async def git_log(self, limit: int = 20, revisions: str = "HEAD") -> dict[str, object]:
        """Return the latest commits: {commits: [{commit, author, at, subject}]}."""
        if revisions.startswith("-"):
            raise UsageError("revisions may not start with a dash")
        result = await self.run(["git", "log", f"-n{int(limit)}", "--format=%H%x1f%an%x1f%aI%x1f%s", revisions, "--"])
        return {"commits": [dict(zip(("commit", "author", "at", "subject"), line.split("\x1f"), strict=True))
                            for line in result["stdout"].splitlines()]}

    async def run(self, command: list[str] | str, check: bool = True, cwd: str = ".") -> CommandResult:
        """Run a command (a list of words, or text for `sh -c`): {exit_code, stdout, stderr}. With `check`, an exit
        code other than 0 fails the step.
        """
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        async with self._start(words, self._below(cwd)) as process:
            try:
                out, err = await asyncio.gather(_read_bounded(process.stdout), _read_bounded(process.stderr))
                await process.wait()
            except BaseException:
                # The whole group, a separate session: else processes that the command started would outlive the step.
                signal_group(process)
                await process.wait()
                raise
        result: CommandResult = {"exit_code": process.returncode or 0, "stdout": out.decode(errors="replace"),
                                 "stderr": err.decode(errors="replace")}
        if check and process.returncode:
            tail = " ".join((result["stderr"] or result["stdout"]).split())[-300:]
            raise CommandFailed(f"{words[0]} ended with exit code {process.returncode}{f': {tail}' if tail else ''}")
        return result

    @asynccontextmanager
    async def _start(self, words: Sequence[str], cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
        if self._commands is None:
            yield await _spawn(Confined(tuple(words), os.environ, Mode.NONE), cwd)
            return
        with self._commands.confined(words, cwd) as (confined, network):
            keeper = asyncio.create_task(_keep(network))
            try:
                yield await _spawn(confined, cwd)
            finally:
                keeper.cancel()
                await asyncio.wait({keeper})


async def _spawn(confined: Confined, cwd: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *confined.argv, cwd=cwd, env=dict(confined.env), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True)


async def _keep(network: NetworkPlace) -> None:
    """Serve a command's network by a proxy while the command runs."""
    while True:
        network.keep()
        await wait_readable(1.0, network.unserved)


async def _read_bounded(stream: asyncio.StreamReader | None) -> bytes:
    """Read an output to its end; return its bounded start."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(1 << 16)):
        # The rest is read and dropped, or the command would block on a full pipe.
        kept += chunk[:MAX_OUTPUT - len(kept)]
    return bytes(kept)


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r:.80} is not a regular expression: {error}") from error


# ---- Python functions ------------------------------------------------------------------------------------------------


SEPARATOR = ":"


def python_tools(workflow: Workflow, base: Path) -> dict[str, Callable[..., object]]:
    """Return the functions named in the workflow's steps; ToolNotFoundError for one that cannot be loaded."""
    names = dict.fromkeys(step.tool for step in workflow.steps if SEPARATOR in step.tool)
    return {name: load_tool(name, base) for name in names}


def load_tool(name: str, base: Path) -> Callable[..., object]:
    """Return the function that `name` refers to, for a workflow whose file is in `base`."""
    location, _, attribute = name.rpartition(SEPARATOR)
    try:
        module = _load_file(base / location) if location.endswith(".py") else _import_module(location, base)
    except ToolNotFoundError as error:
        raise ToolNotFoundError(f"the tool {name!r:.120}: {error}") from error
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())[:300]
        raise ToolNotFoundError(f"the tool {name!r:.120}: {location} fails to load ({type(error).__name__}: "
                                f"{message})") from error
    function: Any = module
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
                 and getattr(value, "__module__", None) == module.__name__]
        hint = correction(attribute, names, f"it has {', '.join(names[:8]) or 'none'}")
        raise ToolNotFoundError(f"the tool {name!r:.120}: {location} has no function {attribute!r:.60}; {hint}")
    return function  # type: ignore[no-any-return]


def _import_module(name: str, base: Path) -> ModuleType:
    with _on_path(base):
        # Python caches the listing of a folder; a module that an earlier step has written would not be found.
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
                raise ToolNotFoundError(f"no module {error.name}, neither in {base} nor on Python's path"
                                        ) from error
            raise
        except (TypeError, ValueError) as error:
            raise ToolNotFoundError(f"{name!r:.60} is not a module; write package.module:function") from error


@contextmanager
def _on_path(base: Path) -> Iterator[None]:
    sys.path.insert(0, str(base))
    try:
        yield
    finally:
        sys.path.remove(str(base))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ToolNotFoundError(f"no file {path}")
    name = f"garrison_tool_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    with _on_path(path.parent):
        spec.loader.exec_module(module)
    return module
