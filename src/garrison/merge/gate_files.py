"""Files of a gate: the programs and scripts that its command names, and its sections of shared manifests. Pure.

A command is split like a shell does and followed through wrappers (`env`, `timeout`, `uv run` …), `make` targets,
scripts of `package.json` and shell scripts, as far as the target's files define them. A file of the runner alone
(`pytest.ini`, a script) counts as a whole. Of a shared manifest only the runner's sections count, compared as parsed
values: one more dependency does not change the gate.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from garrison.values import Value

Read = Callable[[str], bytes | None]
"""Returns the content of a target's file by path; None if it does not exist or is too large."""

MAX_DEPTH = 4
"""Depth of scripts that are followed."""
MAX_FILES = 64
"""Maximum number of scripts followed."""
_MAX_LINK = 200
"""Maximum length of the target of a symbolic link."""


class ManifestForm(StrEnum):
    """How a manifest is read."""

    TOML = "toml"
    INI = "ini"
    JSON = "json"
    MAKE = "make"


class Section(Value):
    """Part of a manifest: keys with dots between them, names of ini sections, or targets of make. The last part of a
    key may be a pattern."""

    file: str
    form: ManifestForm
    keys: tuple[str, ...]


class GateFiles(Value):
    """Files of a gate, including files that do not exist: a branch may add them."""

    files: frozenset[str] = frozenset()
    sections: frozenset[Section] = frozenset()
    scripts: frozenset[str] = frozenset()
    """The files that the command runs and the target has; the rest are configuration."""
    modules: frozenset[str] = frozenset()
    """Python modules that it starts with `-m`; a file of the same name would shadow them."""

    @property
    def manifests(self) -> frozenset[str]:
        """Return the manifests with a section of the gate."""
        return frozenset(section.file for section in self.sections)


OWN_SETTINGS = Section("garrison.toml", ManifestForm.TOML, ("launch", "guard", "gates", "whole_gate_every"))
"""garrison's settings of a repository: they define the gate and its checks."""

_PYPROJECT, _SETUP_CFG, _PACKAGE = "pyproject.toml", "setup.cfg", "package.json"
_PYTEST = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"), (
    (_PYPROJECT, ManifestForm.TOML, "tool.pytest*"), (_SETUP_CFG, ManifestForm.INI, "tool:pytest"),
    ("tox.ini", ManifestForm.INI, "pytest"))
_Tool = tuple[tuple[str, ...], tuple[tuple[str, ManifestForm, str], ...]]
_TOOLS: Mapping[str, _Tool] = {
    "pytest": _PYTEST, "py.test": _PYTEST,
    "tox": (("tox.ini", "tox.toml", *_PYTEST[0]), (
        (_PYPROJECT, ManifestForm.TOML, "tool.tox"), (_SETUP_CFG, ManifestForm.INI, "tox*"),
        (_SETUP_CFG, ManifestForm.INI, "testenv*"),
        *_PYTEST[1])),
    "nox": (("noxfile.py", *_PYTEST[0]), _PYTEST[1]),
    "coverage": ((".coveragerc",),
                 ((_PYPROJECT, ManifestForm.TOML, "tool.coverage"), (_SETUP_CFG, ManifestForm.INI, "coverage*"))),
    "ruff": (("ruff.toml", ".ruff.toml"), ((_PYPROJECT, ManifestForm.TOML, "tool.ruff"),)),
    "mypy": (("mypy.ini", ".mypy.ini"),
             ((_PYPROJECT, ManifestForm.TOML, "tool.mypy"), (_SETUP_CFG, ManifestForm.INI, "mypy*"))),
    "flake8": ((".flake8",), ((_SETUP_CFG, ManifestForm.INI, "flake8*"), ("tox.ini", ManifestForm.INI, "flake8*"))),
    "pre-commit": ((".pre-commit-config.yaml",), ()),
    "jest": (("jest.config.*",), ((_PACKAGE, ManifestForm.JSON, "jest"),)),
    "vitest": (("vitest.config.*", "vitest.workspace.*"), ()),
    "mocha": ((".mocharc.*", ".mocharc", "test/mocha.opts"), ((_PACKAGE, ManifestForm.JSON, "mocha"),)),
    "ava": (("ava.config.*",), ((_PACKAGE, ManifestForm.JSON, "ava"),)),
    "tap": ((".taprc",), ((_PACKAGE, ManifestForm.JSON, "tap"),)),
    "karma": (("karma.conf.*",), ()),
    "playwright": (("playwright.config.*",), ()),
    "cypress": (("cypress.config.*",), ()),
    "eslint": (("eslint.config.*", ".eslintrc", ".eslintrc.*"), ((_PACKAGE, ManifestForm.JSON, "eslintConfig"),)),
    "phpunit": (("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml"), ()),
    "rspec": ((".rspec",), ()),
    "cargo": ((".cargo/config.toml", ".cargo/config", ".config/nextest.toml"), (
        ("Cargo.toml", ManifestForm.TOML, "test"), ("Cargo.toml", ManifestForm.TOML, "lib.test"),
        ("Cargo.toml", ManifestForm.TOML, "profile.test"))),
    "just": (("justfile", "Justfile", ".justfile"), ()),
    "rake": (("Rakefile", "rakefile", "Rakefile.rb"), ()),
    "invoke": (("tasks.py",), ()), "inv": (("tasks.py",), ()),
    "task": (("Taskfile.yml", "Taskfile.yaml"), ()),
}
"""Test runner or checker → its own files and its sections of shared ones (from the tools' documentation)."""

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "busybox"})
_INTERPRETERS = re.compile(r"(?:python|pypy)[0-9.]*|node|nodejs|deno|ruby|perl|php|Rscript|tsx|ts-node|lua")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_WITH_VALUE = frozenset({"-W", "-X", "-o", "-O"})
"""Options of shells and interpreters whose next word is their value."""
_LOADS = frozenset({"-r", "--require", "--import", "--loader", "--experimental-loader", "--rcfile", "--init-file"})
"""Options whose next word is another file to run."""
_PREFIXES = frozenset({"exec", "command", "builtin", "time", "nohup", "setsid", "chronic", "sudo", "!", "{", "if",
                       "then", "else", "elif", "do", "while", "until", "env", "nice", "ionice", "stdbuf", "timeout",
                       "xvfb-run", "catchsegv", "xargs", "npx", "bunx", "uvx", "pnpx"})
"""Wrapper programs, which are skipped with their options and values."""
_SHELL_WORDS = frozenset({"env", "exec", "time", "!", "command"})
"""Wrappers that look up the program like a shell."""
_RUNS = frozenset({"uv", "poetry", "pdm", "hatch", "pipenv", "rye", "dotenv", "pixi", "coverage"})
"""Programs whose `run` starts another."""
_PACKAGERS = frozenset({"npm", "pnpm", "yarn", "bun"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_SEPARATORS = frozenset(";&|()\n")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")


def find_gate_files(command: str, read: Read) -> GateFiles:
    """Return the files of a gate's command, resolved with the target's files."""
    finder = _Finder(read)
    finder.follow_text(command, "", 0)
    sections: dict[tuple[str, ManifestForm], list[str]] = {}
    for file, form, key in finder.sections:
        sections.setdefault((file, form), []).append(key)
    return GateFiles(frozenset(finder.files), frozenset(
        {Section(file, form, tuple(sorted(set(keys)))) for (file, form), keys in sections.items()} | {OWN_SETTINGS}),
        frozenset(finder.scripts), frozenset(finder.modules))


class _Finder(msgspec.Struct):
    """Walk through a command and the scripts that it calls."""

    read: Read
    files: set[str] = msgspec.field(default_factory=set)
    scripts: set[str] = msgspec.field(default_factory=set)
    sections: set[tuple[str, ManifestForm, str]] = msgspec.field(default_factory=set)
    modules: set[str] = msgspec.field(default_factory=set)
    followed: set[str] = msgspec.field(default_factory=set)

    def follow_text(self, text: str, folder: str, depth: int) -> None:
        """Record the files named by the simple commands of a shell text."""
        if depth > MAX_DEPTH:
            return
        for words in _simple_commands(text):
            if words[0] == "cd" and len(words) == 2:
                folder = _join(folder, words[1]) or folder
            else:
                self._follow_command(words, folder, depth)

    def _follow_command(self, words: Sequence[str], folder: str, depth: int) -> None:
        words = _skip_prefixes(words)
        if not words:
            return
        program, rest = words[0], words[1:]
        name = program.rpartition("/")[2]
        if "/" in program:
            self._note_script(program, folder, depth)
        if name in _SHELLS:
            self._follow_shell(rest, folder, depth)
        elif name in (".", "source"):
            self._note_script("".join(rest[:1]), folder, depth, is_shell=True)
        elif name in ("make", "gmake"):
            self._follow_make(rest, folder, depth)
        elif name in _PACKAGERS:
            self._follow_package(name, rest, folder, depth)
        elif _INTERPRETERS.fullmatch(name):
            self._follow_interpreter(name, rest, folder, depth)
        else:
            self._follow_tool(name, rest, folder, depth)

    def _follow_tool(self, name: str, rest: Sequence[str], folder: str, depth: int) -> None:
        self._note_tool(name, folder)
        if name in _RUNS and "run" in rest:
            inner = rest[rest.index("run") + 1:]
            if name == "coverage":  # it runs a module or script like python does
                self._follow_interpreter("python", inner, folder, depth)
            else:
                self._follow_command(_skip_options(inner), folder, depth)
        elif name == "bundle" and rest[:1] == ["exec"]:
            self._follow_command(rest[1:], folder, depth)
        for option in ("-c", "--config", "--config-file", "--rcfile"):
            if name in _TOOLS and option in rest[:-1]:
                self._note(rest[rest.index(option) + 1], folder)

    def _note_tool(self, name: str, folder: str) -> None:
        files, sections = _TOOLS.get(name, ((), ()))
        for places in {"", folder}:
            self.files.update(_join(places, file) for file in files)
            self.sections.update((_join(places, file), form, key) for file, form, key in sections)

    def _note(self, word: str, folder: str) -> str:
        """Record the file that a word of a command names; return its path, '' if outside the repository or not a fixed
        name."""
        path = _join(folder, word)
        if path:
            self.files.add(path)
        return path

    def _note_script(self, word: str, folder: str, depth: int, *, is_shell: bool = False) -> None:
        path = self._note(word, folder)
        if not path or path in self.followed or len(self.followed) >= MAX_FILES or depth > MAX_DEPTH:
            return
        self.followed.add(path)
        content = self.read(path)
        if content is None:
            return
        self.scripts.add(path)
        text = content.decode(errors="replace")
        first = text.partition("\n")[0]
        linked = _join(posixpath.dirname(path), text) if text == first and len(text) < _MAX_LINK else ""
        if linked and self.read(linked) is not None:  # the blob of a symbolic link is its target path
            self._note_script(linked, "", depth + 1, is_shell=is_shell)
        elif is_shell or (not _SHELLS.isdisjoint(re.split(r"[/ ]", first)) if first.startswith("#!")
                          else path.endswith((".sh", ".bash"))):
            self.follow_text(text, "", depth + 1)

    def _follow_shell(self, rest: Sequence[str], folder: str, depth: int) -> None:
        position = 0
        while position < len(rest) and rest[position][:1] in ("-", "+") and rest[position] != "-":
            word = rest[position]
            if re.fullmatch(r"-[a-zA-Z]*c", word):
                if position + 1 < len(rest):
                    self.follow_text(rest[position + 1], folder, depth + 1)
                return
            if word in _LOADS and position + 1 < len(rest):
                self._note_script(rest[position + 1], folder, depth)
            position += 1 + (word in _WITH_VALUE or word in _LOADS)
        if position < len(rest):
            self._note_script(rest[position], folder, depth, is_shell=True)

    def _follow_interpreter(self, name: str, rest: Sequence[str], folder: str, depth: int) -> None:
        position = 0
        while position < len(rest) and rest[position].startswith("-"):
            word = rest[position]
            if _PYTHON.fullmatch(name) and re.fullmatch(r"-[a-zA-Z]*m", word):
                self._follow_module(rest[position + 1:], folder, depth)
                return
            if word in ("-c", "-e", "-p", "--eval", "--print", "--test"):
                return  # `node --test` is a test runner: its arguments are tests
            if word in _LOADS and position + 1 < len(rest):
                self._note_script(rest[position + 1], folder, depth)
            position += 1 + (word in _WITH_VALUE or word in _LOADS)
        if position < len(rest):
            self._note_script(rest[position], folder, depth)

    def _follow_module(self, rest: Sequence[str], folder: str, depth: int) -> None:
        if not rest:
            return
        module = rest[0]
        if re.fullmatch(r"[\w.]+", module):
            self.modules.add(module.partition(".")[0])
        if module in _TOOLS or module in _RUNS:
            self._follow_command([module, *rest[1:]], folder, depth)
        elif module != "unittest" and re.fullmatch(r"[\w.]+", module):
            path = module.replace(".", "/")
            found = [_join(folder, name) for name in (f"{path}.py", f"{path}/__main__.py", f"{path}/__init__.py")]
            self.files.update(name for name in found if self.read(name) is not None)

    def _follow_package(self, name: str, rest: Sequence[str], folder: str, depth: int) -> None:
        words = list(rest)
        for option in ("--prefix", "-C", "--dir", "--cwd"):
            if option in words[:-1]:
                position = words.index(option)
                folder = _join(folder, words[position + 1]) or folder
                del words[position:position + 2]
        words = [word for word in words if not word.startswith("-")]
        if words[:1] in (["run"], ["run-script"]):
            words = words[1:]
        elif words[:1] in (["exec"], ["dlx"], ["x"]):
            self._follow_command(words[1:], folder, depth)
            return
        elif name == "npm" and words[:1] and words[0] in ("t", "tst"):
            words[0] = "test"
        elif words[:1] != ["test"] and name == "npm":
            return  # `npm ci` and its like run no script of that name
        if not words:
            return
        path = _join(folder, _PACKAGE)
        scripts = _look_up(_parse(ManifestForm.JSON, self.read(path)), "scripts")
        for script in (f"pre{words[0]}", words[0], f"post{words[0]}"):
            self.sections.add((path, ManifestForm.JSON, f"scripts.{script}"))
            text = scripts.get(script) if isinstance(scripts, dict) else None
            if isinstance(text, str) and f"{path}:{script}" not in self.followed and len(self.followed) < MAX_FILES:
                self.followed.add(f"{path}:{script}")
                self.follow_text(text, folder, depth + 1)

    def _follow_make(self, rest: Sequence[str], folder: str, depth: int) -> None:
        words, targets, files = list(rest), [], []
        while words:
            word = words.pop(0)
            if word in ("-C", "--directory", "-f", "--file", "--makefile") and words:
                value = words.pop(0)
                if word in ("-C", "--directory"):
                    folder = _join(folder, value) or folder
                else:
                    files.append(_join(folder, value))
            elif not word.startswith("-") and "=" not in word:
                targets.append(word)
        paths = [path for path in files or [_join(folder, name) for name in MAKEFILES] if path]
        path, data = next(((each, data) for each in paths if (data := self.read(each)) is not None), ("", b""))
        self.sections.update((each, ManifestForm.MAKE, target) for each in paths for target in targets or [""])
        if not path or f"{path}:{targets}" in self.followed:
            return
        self.followed.add(f"{path}:{targets}")
        makefile = Makefile.parse(data.decode(errors="replace"))
        for included in makefile.includes:
            self._note(included, folder)
        for recipe in makefile.recipes(targets):
            self.follow_text(recipe.lstrip("@-+ \t"), folder, depth + 1)


def command_words(line: str) -> list[str]:
    """Return the program of each simple command of a shell line (`cd a && FOO=1 python -m x` → cd, python)."""
    programs = [next((word for word in words if not _ASSIGNMENT.match(word) and word not in _SHELL_WORDS), "")
                for words in _simple_commands(line)]
    return list(filter(None, programs))


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, without redirections."""
    lexer = shlex.shlex(_COMMENT.sub("", text.replace("\\\n", " ")), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    is_redirected = False
    try:
        for word in lexer:
            if word and set(word) <= _SEPARATORS | set("<>"):
                is_redirected = bool(set(word) & set("<>")) and not set(word) & _SEPARATORS - set("&")
                if not is_redirected and words:
                    yield words
                    words = []
                elif is_redirected and words and words[-1].isdigit():
                    words.pop()
            elif is_redirected:
                is_redirected = False
            else:
                words.append(word)
    except ValueError:  # an open quote: more than a list of commands
        pass
    if words:
        yield words


def _skip_prefixes(words: Sequence[str]) -> list[str]:
    """Return a command without assignments and wrapper programs."""
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in _PREFIXES):
        word = rest.pop(0)
        if word in _PREFIXES:
            rest = _skip_options(rest)
            if word == "timeout" and rest:
                rest.pop(0)
    return rest


def _skip_options(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-n", "-u", "-s", "-k", "--with", "--extra", "--group", "--python", "-p", "--env-file",
                      "--directory", "--project", "--package") and rest:
            rest.pop(0)
    return rest


def _join(folder: str, word: str) -> str:
    """Return a path from the top of the repository; '' for one outside, or with a part that a shell would expand."""
    if not word or word.startswith(("/", "~")) or re.search(r"[$`*?\[\]{}\0]", word.replace(".*", "")):
        return ""
    path = posixpath.normpath(posixpath.join(folder, word))
    return "" if path in (".", "..") or path.startswith("../") else path


# ---- parsed values ---------------------------------------------------------------------------------------------------


def is_same_section(section: Section, before: bytes | None, after: bytes | None) -> bool:
    """Return whether a section of a manifest has the same value in two versions; a manifest that cannot be read has
    another value."""
    if before == after:
        return True
    if section.form is ManifestForm.MAKE:
        views = [Makefile.parse((data or b"").decode(errors="replace")).view(section.keys) for data in (before, after)]
        return views[0] == views[1]
    old, new = _parse(section.form, before), _parse(section.form, after)
    if new is _UNREADABLE or old is _UNREADABLE:
        return False
    return all(_select(old, key) == _select(new, key) for key in section.keys)


_UNREADABLE: object = object()


def _parse(form: ManifestForm, data: bytes | None) -> object:
    import configparser  # imported late, like tomllib: few gates have sections of a manifest
    import tomllib

    if data is None:
        return {}
    text = data.decode(errors="surrogateescape")
    try:
        match form:
            case ManifestForm.TOML:
                return tomllib.loads(text)
            case ManifestForm.JSON:
                return json.loads(text)
            case _:
                parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
                parser.read_string(text)
                return {name: dict(parser.items(name)) for name in parser.sections()}
    except (ValueError, configparser.Error, RecursionError):
        return _UNREADABLE


def _look_up(value: object, key: str) -> object:
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _select(value: object, key: str) -> object:
    """Return the value of a key; with a pattern, or in an ini file, the matching parts of that level."""
    if "*" in key or ":" in key:
        above, _, last = key.rpartition(".")
        inner = _look_up(value, above) if above else value
        names = inner if isinstance(inner, dict) else {}
        return {name: names[name] for name in sorted(names) if fnmatchcase(name, last)}
    return _look_up(value, key)


_RULE = re.compile(r"([^\s#:=][^:=#]*?)\s*::?(?![:=])\s*([^;#]*)(?:;(.*))?")
_VARIABLE = re.compile(r"(?:(?:export|override|private)\s+)*([\w.-]+)\s*[:+?!]{0,3}=(.*)")
_USED = re.compile(r"\$[({]([\w.-]+)[)}]")
_INCLUDE = re.compile(r"[-s]?include\s+(.*)")


class Makefile(Value):
    """The parts of a makefile that determine what a target does."""

    rules: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    """Target → prerequisites and recipe lines."""
    variables: Mapping[str, tuple[str, ...]]
    includes: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Makefile:
        """Read the rules, variables and includes of a makefile; all conditions count as met."""
        rules: dict[str, tuple[list[str], list[str]]] = {}
        variables: dict[str, list[str]] = {}
        includes: list[str] = []
        current: list[str] = []
        for line in text.replace("\\\n", " ").split("\n"):
            if line.startswith("\t"):
                for name in current:
                    rules[name][1].append(line.strip())
            elif found := _VARIABLE.fullmatch(line.strip()):
                variables.setdefault(found[1], []).append(line.strip())
            elif found := _INCLUDE.fullmatch(line.strip()):
                includes += found[1].split()
            elif found := _RULE.fullmatch(line.rstrip()):
                current = found[1].split()
                for name in current:
                    known = rules.setdefault(name, ([], []))
                    known[0].extend(found[2].split())
                    known[1].extend([found[3].strip()] if found[3] else [])
            elif line.strip() and not line.startswith("#"):
                current = []
        return cls({name: (tuple(needs), tuple(lines)) for name, (needs, lines) in rules.items()},
                   {name: tuple(lines) for name, lines in variables.items()}, tuple(includes))

    def _closure(self, targets: Sequence[str]) -> list[str]:
        first = next((name for name in self.rules if not name.startswith(".")), "")
        todo, found = [name or first for name in targets or [""]], dict[str, None]()
        while todo:
            name = todo.pop()
            if name in found or name not in self.rules:
                continue
            found[name] = None
            todo += self.rules[name][0]
        return list(found)

    def recipes(self, targets: Sequence[str]) -> list[str]:
        """Return the recipe lines of some targets, with simple variables expanded."""
        def expand(match: re.Match[str]) -> str:
            lines = self.variables.get(match[1], ())
            return lines[-1].partition("=")[2].strip() if lines else match[0]

        return [_USED.sub(expand, line) for name in self._closure(targets) for line in self.rules[name][1]]

    def view(self, targets: Sequence[str]) -> tuple[object, ...]:
        """Return what determines some targets: their rules, the variables that these use, and includes."""
        names = self._closure(targets)
        rules = {name: self.rules[name] for name in names}
        todo = [*_USED.findall(" ".join(part for rule in rules.values() for lines in rule for part in lines)),
                "SHELL", ".SHELLFLAGS", "MAKEFLAGS", ".DEFAULT_GOAL"]
        used: dict[str, tuple[str, ...]] = {}
        while todo:
            name = todo.pop()
            if name in self.variables and name not in used:
                used[name] = self.variables[name]
                todo += _USED.findall(" ".join(used[name]))
        return rules, used, self.includes
