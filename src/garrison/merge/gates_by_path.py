"""Gates by path: select which gates declared in a repository's garrison.toml a change has to pass. Pure.

    [[gates]]
    name = "api"
    paths = ["packages/api/**"]
    command = "cd packages/api && npm test"
    needs = ["schema"]                      # also runs whenever `schema` runs

Theory of operation. A tree that would land differs from the target in some files. A file needs the whole gate if no
rule matches it, or if it is garrison.toml, which contains the rules. If no file needs the whole gate, the matching
rules run, with all rules that depend on them. Each such set of gates is one command with its own verdict key, so that
its verdict never counts for the whole gate; a verdict of the whole gate counts for every set.

The rules come from the target's commit that the tree was built on, never from the branch. Undeclared dependencies
between projects are caught by the whole gate: it runs before the launch, at the exit of a run that lands as a whole,
for one in `whole_gate_every` entries, and on the bare target before an entry is blamed.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from garrison.config import GATES, PROJECT_FILE, WHOLE_GATE_EVERY
from garrison.errors import UsageError
from garrison.spelling import nearest
from garrison.tables import Table, as_names, as_strings, as_text, matching, setting, whole
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from garrison.merge.config import QueueConfig
    from garrison.merge.state import QueueState

EVERY = 10
"""Default number of entries that land before the whole gate runs again."""
MAX_RULES = 200
"""Maximum number of rules in a file."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"


class GateRule(Value):
    """A table `[[gates]]` of garrison.toml."""

    name: str = setting("", matching(_NAME, "a name of letters, digits, dots and dashes"))
    paths: tuple[str, ...] = setting((), as_strings)
    """Patterns of files from the top: `*` stays within a folder, `**` does not, and a folder stands for all below it.
    """
    command: str = setting("", as_text)
    """Shell line that tests them, from the top of the merged tree."""
    needs: tuple[str, ...] = setting((), as_names)
    """Gates whose runs trigger this one."""
    dependants: tuple[str, ...] = setting((), as_names)
    """Gates triggered by this one."""

    def matches(self, file: str) -> bool:
        parts = file.split("/")
        return any(_matches(each, parts) for each in self.paths)


class GateRules(Value):
    """Gates by path of a garrison.toml; without rules everything has to pass the whole gate."""

    rules: tuple[GateRule, ...] = ()
    every: int = EVERY
    """Maximum number of entries that land before the whole gate runs again; 1: it always runs."""
    problem: str = ""
    """Why the rules could not be read; then everything has to pass the whole gate."""

    def select(self, files: Iterable[str]) -> tuple[str, ...]:
        """Return the gates for a change of these files, in the order of the file; () for the whole gate.
        """
        chosen: set[str] = set()
        for file in files:
            found = {rule.name for rule in self.rules if rule.matches(file)}
            if not found or file.rpartition("/")[2] == PROJECT_FILE:
                return ()
            chosen |= found
        while added := {rule.name for rule in self.rules if chosen.intersection(rule.needs)}.union(
                *(rule.dependants for rule in self.rules if rule.name in chosen)) - chosen:
            chosen |= added
        return tuple(rule.name for rule in self.rules if rule.name in chosen)

    def command(self, names: Collection[str]) -> str | None:
        """Return the shell line that runs these gates one after the other; None if one of them is not declared."""
        lines = [rule.command for rule in self.rules if rule.name in names]
        if len(lines) != len(names):
            return None
        # each in its own subshell, since the next starts at the top; the newline keeps a comment from swallowing the
        # bracket
        return lines[0] if len(lines) == 1 else " && ".join(f"({line}\n)" if "#" in line else f"({line})"
                                                            for line in lines)


def read_rules(file: Table) -> GateRules:
    """Return the rules of the garrison.toml at the top of a repository; UsageError describes a mistake."""
    every = file.value(WHOLE_GATE_EVERY, whole(1, 10_000), EVERY)
    tables = file.values.get(GATES, []) if isinstance(file.values, dict) else []
    if not isinstance(tables, list) or len(tables) > MAX_RULES:
        raise file.error(f"{GATES} should be written as [[{GATES}]], once for each gate, {MAX_RULES} at most", GATES)
    rules = [_read_rule(file, table, number) for number, table in enumerate(tables)]
    names = [rule.name for rule in rules]
    for number, rule in enumerate(rules):
        if rule.name in names[:number]:
            raise _table(file, {}, number).error(f"name={rule.name!r} is that of another gate; each needs its own")
        for key, others in (("needs", rule.needs), ("dependants", rule.dependants)):
            for other in others:
                if other not in names:
                    near = nearest(other, names)
                    raise _table(file, {}, number).error(f"{key}={other!r} of {rule.name} is not a gate of this file"
                                                         + (f"; did you mean {near}?" if near else ""))
    return GateRules(tuple(rules), every)


def _read_rule(file: Table, values: object, number: int) -> GateRule:
    table = _table(file, values, number)
    rule = table.read(GateRule)
    for key in ("name", "paths", "command"):
        if not getattr(rule, key):
            raise table.error(f"{rule.name or 'this gate'} needs {key}")
    for path in rule.paths:
        try:
            _pattern_parts(path)
        except ValueError as error:
            raise table.error(f"paths={path!r} of {rule.name} should be {error}") from None
    return rule


def _table(file: Table, values: object, number: int) -> Table:
    return Table(place_of_rule(file, number), values, (f"[{GATES}]",))


def place_of_rule(file: Table, number: int) -> str:
    """Return the file and the line on which a rule starts; the first has the number 0."""
    begins = [line for line, text in enumerate(file.text.splitlines(), 1)
              if re.match(rf"\s*\[\[\s*{GATES}\s*\]\]", text)]
    return f"{file.file}:{begins[number]}" if number < len(begins) else file.file


def parse_rules(data: bytes) -> GateRules:
    """Return the rules of a commit's garrison.toml; if unreadable, everything has to pass the whole gate."""
    try:
        return read_rules(Table.parse(PROJECT_FILE, data))
    except UsageError as error:
        return GateRules(problem=str(error))


def _matches(pattern: str, parts: Sequence[str]) -> bool:
    """Return whether a pattern matches a path; `**` stands for zero or more folders.

    A single pass over the path: the branch chooses its names, and none may make a pattern slow.
    """
    wanted = _pattern_parts(pattern)
    places = _with_skipped(wanted, {0})
    for part in parts:
        places = _with_skipped(wanted, {
            place if wanted[place] is None else place + 1 for place in places
            if place < len(wanted) and ((expression := wanted[place]) is None or expression.match(part))})
    return len(wanted) in places


def _with_skipped(wanted: Sequence[re.Pattern[str] | None], places: set[int]) -> set[int]:
    for place in range(len(wanted)):
        if place in places and wanted[place] is None:
            places.add(place + 1)
    return places


@lru_cache(maxsize=1024)
def _pattern_parts(pattern: str) -> tuple[re.Pattern[str] | None, ...]:
    """Return what each part of a pattern matches, None for `**`; ValueError describes the expected form."""
    if not pattern.strip("/") or pattern.startswith(("/", "./", "!", ":")) or ".." in pattern.split("/") \
            or "\\" in pattern:
        raise ValueError('a pattern of files from the top of the repository, such as "packages/a/**"')
    parts = pattern.rstrip("/").split("/")
    if pattern.endswith("/") or not set(pattern) & set("*?["):
        parts.append("**")  # a folder stands for all below it
    return tuple(None if part == "**" else re.compile(translate(part)) for part in parts)


# ------------------------------------------------------------------------------------------------ the gates of a queue


class ChosenGate(Value):
    """Gate that a tree has to pass: the whole one, or that of some rules, with its `config` and verdict `key`."""

    config: QueueConfig
    key: str
    names: tuple[str, ...] = ()
    """Gates by path that it consists of; () for the whole gate."""

    @property
    def is_whole(self) -> bool:
        return not self.names


class GateBook(Value, dict=True):
    """Gates of a queue at one commit of its target."""

    config: QueueConfig
    """Recorded configuration, with the whole gate."""
    rules: GateRules
    environment: Mapping[str, str]
    targets_files: str = ""
    """The target's files that match `gate_from_target`."""

    @cached_property
    def whole(self) -> ChosenGate:
        return ChosenGate(self.config, self.config.verdict_key(self.environment, self.targets_files))

    def of(self, names: tuple[str, ...]) -> ChosenGate | None:
        """Return the gate of some rules, the whole gate for (); None if the target no longer declares them."""
        if not names:
            return self.whole
        if names not in self._known:
            command = self.rules.command(names)
            if command is not None and command == self.config.gate:  # equal to the whole gate
                return self.whole
            config = replace(self.config, gate=command)
            self._known[names] = None if command is None else ChosenGate(
                config, config.verdict_key(self.environment, self.targets_files), names)
        return self._known[names]

    def is_present(self, names: tuple[str, ...], key: str) -> bool:
        """Return whether a run of these gates, with that key, ran their current commands."""
        gate = self.of(names)
        return gate is not None and gate.key == key

    def select(self, files: Iterable[str]) -> ChosenGate:
        """Return the gate selected by the paths of a change."""
        return self.of(self.rules.select(files)) or self.whole

    def choose(self, state: QueueState, entries: Collection[str], files: Iterable[str]) -> ChosenGate:
        """Return the gate for entries that together change these files: the whole gate whenever it is due."""
        if not self.rules.rules or len(landed_since_whole(state, self.whole.key)) + len(entries) >= self.rules.every:
            return self.whole
        return self.select(files)

    def find_passed(self, state: QueueState, tree: str, needed: ChosenGate) -> ChosenGate | None:
        """Return a gate that a tree has passed and that covers the required one; None if none does."""
        for gate in (needed, self.whole):
            if (tree, gate.key) in state.green:
                return gate
        for run in state.verdicts.runs if needed.names else ():
            if run.tree == tree and run.result == "green" and set(needed.names) <= set(run.gates) \
                    and self.is_present(run.gates, run.key):
                return self.of(run.gates)
        return None

    @cached_property
    def _known(self) -> dict[tuple[str, ...], ChosenGate | None]:
        return {}


def landed_since_whole(state: QueueState, key: str) -> tuple[str, ...]:
    """Return the entries landed since a tree of the target last passed the whole gate with that key."""
    names: list[str] = []
    for tree, landed in reversed(state.partial_landings):
        if (tree, key) in state.green:
            break
        names[:0] = landed
    return tuple(names)


def describe_since_whole(landed: Sequence[str]) -> str:
    """Return a note on what landed since the last whole gate, '' if nothing."""
    return f"landed since it last passed as a whole: {', '.join(landed)}" if landed else ""
