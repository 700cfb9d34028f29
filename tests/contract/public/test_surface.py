"""What users build on stays: commands and their options, attributes, settings, JSON fields, groups of plug-ins, names.

`surface.json` has what docs/stability.md promises, as it was recorded. What is new is recorded by
`python -m tests.contract.public.test_surface --record`, which keeps all that was there before: a promise is taken back
by hand, with a line in CHANGELOG.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from garrison.cli.main import garrison
from garrison.config import RECORDS
from garrison.pipeline.lint.known_attributes import KNOWN
from garrison.plugins import PluginGroup
from garrison.tables import readers_of
from garrison.views.node_view import ShownNode
from garrison.views.process_view import ShownProcess
from garrison.views.run_view import ShownRun
from garrison.views.waits import ShownWait

RECORDED = Path(__file__).with_name("surface.json")
PACKAGES = ("garrison.agents", "garrison.pipeline", "garrison.session", "garrison.workflow")
"""Libraries: the names that each exports."""
PLUGIN_NAMES = {
    "garrison.cli.commands": ("Command",), "garrison.cli.options": ("home_option", "output_options"),
    "garrison.errors": ("GarrisonError", "Refused", "UsageError"), "garrison.pipeline.lint": ("Problem", "View"),
    "garrison.pipeline.plan": ("RunPlan",), "garrison.records.run": ("Launch",),
    "garrison.testing.model_server": ("ModelServer",), "garrison.testing.script": ("Script",),
    "garrison.testing.turn": ("Turn", "say", "use")}
"""What plug-ins, and tests of users' own agents, import."""

Surface = Mapping[str, Mapping[str, list[str]]]


def _commands(command: click.Command, name: str, parent: click.Context | None = None,
              ) -> Iterator[tuple[str, list[str]]]:
    context = click.Context(command, parent=parent, info_name=name)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from _commands(found, f"{name} {child}", context)
    else:
        yield name, sorted(word for each in command.params if not getattr(each, "hidden", False)
                           for word in (each.opts if isinstance(each, click.Option) else [str(each.name).upper()]))


def measure() -> dict[str, dict[str, list[str]]]:
    """Return what there is, by kind and name."""
    return {
        "commands": dict(_commands(garrison, "garrison")),
        "attributes": {str(level): sorted(names) for level, names in KNOWN.items()},
        "settings": {table: sorted(readers_of(record)) for table, record in RECORDS.items()},
        "json of status": {record.__name__: sorted(field.encode_name for field in msgspec.structs.fields(record))
                           for record in (ShownRun, ShownNode, ShownProcess, ShownWait)},
        "groups of plug-ins": {"entry points": sorted(PluginGroup)},
        "names": {name: sorted(importlib.import_module(name).__all__) for name in PACKAGES} | {
            name: [each for each in names if hasattr(importlib.import_module(name), each)]
            for name, names in PLUGIN_NAMES.items()}}


def find_missing(recorded: Surface, now: Surface) -> list[str]:
    """Return what was recorded and is gone. Pure."""
    return [f"{kind}: {name}: {each}" for kind, names in recorded.items() for name, words in names.items()
            for each in ([name] if name not in now.get(kind, {}) else sorted({*words} - {*now[kind][name]}))]


def read() -> dict[str, Any]:
    """Return what was recorded."""
    return dict(json.loads(RECORDED.read_text(encoding="utf-8")))


def test_nothing_promised_is_gone_and_everything_that_exists_is_recorded() -> None:
    recorded, now = read(), measure()
    assert find_missing(recorded, now) == []
    assert find_missing(now, recorded) == [], "python -m tests.contract.public.test_surface --record"


def test_a_missing_public_name_is_found() -> None:
    recorded = {"commands": {"a": ["--x", "--y"], "b": []}, "settings": {"t": ["k"]}}
    assert find_missing(recorded, {"commands": {"a": ["--y", "--z"]}}) == [
        "commands: a: --x", "commands: b: b", "settings: t: t"]
    assert find_missing(recorded, recorded) == []


if __name__ == "__main__":
    assert sys.argv[1:] == ["--record"], "say --record"
    united: dict[str, dict[str, list[str]]] = read() if RECORDED.exists() else {}
    for kind, names in measure().items():
        for name, words in names.items():
            of_kind = united.setdefault(kind, {})
            of_kind[name] = sorted({*of_kind.get(name, ()), *words})
    RECORDED.write_text(json.dumps(united, indent=1, sort_keys=True) + "\n", encoding="utf-8")
