"""`garrison signals`: what the layers said to each other and what still waits to be heard, and a word to a pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from garrison.cli import resolve, which
from garrison.cli.home_cmd import home_option, json_option, run_option
from garrison.cli.output import say, show_json, show_table
from garrison.errors import NotFound, RecordError, UsageError
from garrison.records import atomic, record
from garrison.records import run as run_records
from garrison.records.names import Key, check_run
from garrison.records.run import RunFiles
from garrison.records.signals import Signal, post, read
from garrison.records.store import Store
from garrison.settings import find_home
from garrison.supervise.start import fresh_id
from garrison.system.clock import SystemClock

_PLACES = {"waiting": "", "taken": "taken", "refused": "refused"}
"""State → folder in an inbox."""


@click.group()
def signals() -> None:
    """Messages between the layers."""


@signals.command("list")
@click.option("--unacked", is_flag=True, help="Only those that wait to be taken.")
@run_option
@json_option
@home_option
def list_command(unacked: bool, run: str | None, as_json: bool, home: str | None) -> None:
    """List signals, oldest first. State is waiting, taken or refused (with the reason)."""
    place = find_home(home)
    wanted = None if run is None else check_run(run)
    found = [body for key in _inboxes(place) if wanted is None or key.run == wanted
             for state in (["waiting"] if unacked else _PLACES) for body in _read(place, key, state)]
    found.sort(key=lambda body: (body["timestamp"], body["file"]))
    if as_json:
        show_json(found)
        return
    rows = [(body["timestamp"], body["state"], _from(body), body["to"], body["signal_type"], body["node_id"],
             body["attempt"] or "", body["reason"]) for body in found]
    show_table(("TIME", "STATE", "FROM", "TO", "TYPE", "NODE", "TRY", "REASON"), rows, f"no signals in {place}")


@signals.command()
@click.argument("name")
@click.argument("value", required=False)
@run_option
@home_option
def send(name: str, value: str | None, run: str | None, home: str | None) -> None:
    """Give the signal NAME to the pipeline of a run: a node of type wait.signal that waits for it goes on.

    VALUE (JSON, else text; default true) becomes `signal.NAME` in the pipeline's context. A signal that nobody waits
    for yet is kept for the first who does.
    """
    store = Store(find_home(home))
    chosen = which.run_with_guardian(store, run)
    launch = run_records.load(run_records.Launch, RunFiles(store.home, chosen).launch)
    if launch is None:
        raise NotFound(f"run {chosen} has no launch record; `garrison status` lists the runs")
    post(store.home, Signal(
        fresh_id()[:12], {"role": "launch", "name": "launch", "incarnation": 0},
        {"role": "guardian", "name": launch.pipeline_id}, "GUIDANCE", chosen, SystemClock().utc(), None, 0,
        {"action": "signal", "name": name, "value": _value(value)}))
    living = resolve.is_living(store, Key("guardian", launch.pipeline_id, chosen))
    say(f"run {chosen} is told{'' if living else f' as soon as it goes on: `garrison launch --resume {chosen}`'}")


def _value(text: str | None) -> Any:
    if text is None:
        return True
    try:
        return json.loads(text)
    except ValueError:
        return text


def _from(body: dict[str, Any]) -> str:
    return f"{body['source']['role']}-{body['source']['name']}#{body['source'].get('incarnation', '?')}"


def _inboxes(home: Path) -> Iterator[Key]:
    folder = home / "signals"
    for name in sorted(atomic.names(folder)):
        try:
            yield Key.parse(name)
        except UsageError:
            say(f"{folder / name} is no inbox; it was passed over")


def _read(home: Path, key: Key, state: str) -> Iterator[dict[str, Any]]:
    folder = home / "signals" / key.full / _PLACES[state]
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            signal = read(path)
        except FileNotFoundError:
            continue
        except RecordError as error:
            say(str(error))
            continue
        yield {**record.to_dict(signal), "to": key.full, "state": state, "reason": _reason(path), "file": str(path)}


def _reason(path: Path) -> str:
    """Why a signal was refused, '' if it was not."""
    try:
        return path.with_name(f"{path.name}.reason").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
