"""`garrison signals` and `signal_protocol.py`: list, send, write, read and wait for signals.

A bare role is resolved to a full name by the payload: `node_id` says which runner or orchestrator, the run says which
guardian, launcher or processor. The functions return JSON's shapes and raise GarrisonError.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import click

from garrison.cli import resolve
from garrison.cli.arguments import DoorParser, seconds
from garrison.cli.options import home_option, json_option, run_option
from garrison.cli.output import print_error_json, print_json, print_message, print_table, run_guarded
from garrison.config import find_home
from garrison.errors import NotFound, RecordError, Refused, UsageError
from garrison.records import atomic, record
from garrison.records import run as run_records
from garrison.records import signals as signal_records
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key, check_run
from garrison.records.run import Launch, RunFiles
from garrison.records.signals import Signal, post, read
from garrison.records.store import Store
from garrison.supervise.start import new_id
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
             for state in (["waiting"] if unacked else _PLACES) for body in _signals_in(place, key, state)]
    found.sort(key=lambda body: (body["timestamp"], body["file"]))
    if as_json:
        print_json(found)
        return
    rows = [(body["timestamp"], body["state"], _from(body), body["to"], body["signal_type"], body["node_id"],
             body["attempt"] or "", body["reason"]) for body in found]
    print_table(("TIME", "STATE", "FROM", "TO", "TYPE", "NODE", "TRY", "REASON"), rows, f"no signals in {place}")


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
    chosen = resolve.supervised_run(store, run)
    launch = run_records.load(run_records.Launch, RunFiles(store.home, chosen).launch)
    if launch is None:
        raise NotFound(f"run {chosen} has no launch record; `garrison status` lists the runs")
    post(store.home, Signal(
        new_id()[:12], {"role": "launch", "name": "launch", "incarnation": 0},
        {"role": "guardian", "name": launch.pipeline_id}, "GUIDANCE", chosen, SystemClock().utc(), None, 0,
        {"action": "signal", "name": name, "value": _signal_value(value)}))
    living = resolve.is_living(store, Key("guardian", launch.pipeline_id, chosen))
    print_message(f"signal {name} sent" + (
        "" if living else f"; run {chosen} receives it when resumed: `garrison launch --resume {chosen}`"))


def _signal_value(text: str | None) -> Any:
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
    for name in sorted(atomic.list_names(folder)):
        try:
            yield Key.parse(name)
        except UsageError:
            print_message(f"{folder / name} is no inbox; it was passed over")


def _signals_in(home: Path, key: Key, state: str) -> Iterator[dict[str, Any]]:
    folder = home / "signals" / key.full / _PLACES[state]
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            signal = read(path)
        except FileNotFoundError:
            continue
        except RecordError as error:
            print_message(str(error))
            continue
        yield {**record.to_dict(signal), "to": key.full, "state": state, "reason": _reason(path), "file": str(path)}


def _reason(path: Path) -> str:
    """Why a signal was refused, '' if it was not."""
    try:
        return path.with_name(f"{path.name}.reason").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


_OF_A_NODE = ("runner", "orchestrator")
_POLL = 0.05
"""Seconds between two looks into an inbox."""
_numbers = count()

# -------------------------------------------------------------------------------------------------------- as functions


def write_signal(source: str, target: str, type: str, payload: dict[str, Any] | None = None,
                 signals_dir: str | os.PathLike[str] | None = None, *, home: str | None = None) -> str:
    """Write a signal into its recipient's inbox; returns the file's path.

    `source` and `target` are roles (`runner`), names (`runner-impl_auth`) or full names (`runner-impl_auth@run`). The
    run is `payload["run_id"]`, else that of a full name, else GARRISON_RUN, else the only or only living one. With
    `signals_dir` the inbox lies there instead of in the home.
    """
    body = dict(payload or {})
    if type not in signal_records.TYPES:
        raise UsageError(f"not a signal type: {type!r}; types are {', '.join(sorted(signal_records.TYPES))}")
    store = resolve.open_store(home)
    run = _run_of(store, body, source, target)
    node = body.get("node_id")
    sender = _name(store, source, run, node, must_exist=False)
    recipient = _name(store, target, run, node, must_exist=True)
    signal = Signal(new_id()[:12], {"role": sender.role, "name": sender.name, "incarnation": _life(store, sender)},
                    {"role": recipient.role, "name": recipient.name}, type, run, SystemClock().utc(), node,
                    _attempt(store, run, node, body), body)
    if signals_dir is None:
        return str(signal_records.post(store.home, signal))
    folder = atomic.make_directory(Path(signals_dir) / recipient.full)
    path = folder / signal_records.file_name(signal, next(_numbers))
    atomic.write(path, record.encode(signal))
    return str(path)


def read_signal(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The signal in a file; RecordCorrupt if it is none, NotFound if it is gone."""
    try:
        return record.to_dict(signal_records.read(Path(path)))
    except FileNotFoundError:
        raise NotFound(f"no signal {path}; it may have been taken (look in taken/ beside it)") from None


def wait_for_signal(target: str, timeout: float = 60.0, types: Sequence[str] | None = None, run: str | None = None,
                    home: str | None = None) -> dict[str, Any] | None:
    """The oldest signal waiting for `target` (of one of `types`), taken from its inbox; None after `timeout` seconds.

    From the inbox of a living layer that is not the caller's own it is not taken: the layer must obey it.
    """
    store = resolve.open_store(home)
    body = {} if run is None else {"run_id": run}
    recipient = _name(store, target, _run_of(store, body, target), os.environ.get("GARRISON_NODE"), must_exist=False)
    until = time.monotonic() + timeout
    while True:
        found = _take(store, recipient, types)
        if found is not None or time.monotonic() >= until:
            return found
        time.sleep(min(_POLL, max(0.0, until - time.monotonic())))


def _take(store: Store, recipient: Key, types: Sequence[str] | None) -> dict[str, Any] | None:
    folder = signal_records.inbox_path(store.home, recipient)
    if not folder.is_dir():
        return None
    with atomic.locked(folder / ".waiting.lock"):  # two who wait do not get the same one
        for posted in signal_records.list_pending(store.home, recipient):
            if posted.signal is not None and (types is None or posted.signal.signal_type in types):
                if not _is_anothers(store, recipient):
                    signal_records.acknowledge(posted.path)
                return record.to_dict(posted.signal)
    return None


def _is_anothers(store: Store, key: Key) -> bool:
    """Whether a living process that is not ours reads that inbox."""
    identity = store.read(Identity, key)
    if identity is None or identity.pid is None or not resolve.is_living(store, key):
        return False
    return resolve.current_process() != (key.run, Key(key.role, key.name).full)


def _run_of(store: Store, body: dict[str, Any], *names: str) -> str:
    """The run that is meant; '' in a home that has none."""
    asked = body.get("run_id") or next((name.partition("@")[2] for name in names if "@" in name), "")
    if asked or resolve.current_run():
        return check_run(str(asked or resolve.current_run()))
    keys = store.keys(Identity)
    known = sorted({key.run for key in keys} | set(run_records.list_runs(store.home)))
    if len(known) <= 1:
        return known[0] if known else ""
    living = sorted({key.run for key in keys if resolve.is_living(store, key)})
    if len(living) == 1:
        return living[0]
    raise Refused(f"several runs could be meant, say which with run_id in the payload: {', '.join(living or known)}")


def _name(store: Store, text: str, run: str, node: str | None, *, must_exist: bool) -> Key:
    """Who `text` is in `run`. A sender, or one that waits, need not have a record."""
    if text not in ROLES:
        key = Key.parse(text)
        return Key(key.role, key.name, run)
    if text == "launch":
        return Key("launch", "launch", run)
    if text in _OF_A_NODE and node:
        return Key(text, node, run)
    found = [key for key in store.keys(Identity) if (key.role, key.run) == (text, run)]
    if len(found) == 1:
        return found[0]
    launched = run_records.load(Launch, RunFiles(store.home, run).launch) if run else None
    if launched is not None and text not in _OF_A_NODE:
        return Key(text, launched.pipeline_id, run)
    if not must_exist:
        return Key(text, text, run)
    which = f"several ({', '.join(key.full for key in found)})" if found else "none"
    raise NotFound(f"which {text}? run {run or '-'} has {which}; put node_id in the payload, or say {text}-NAME")


def _life(store: Store, key: Key) -> int:
    identity = store.read(Identity, key)
    return resolve.writer_incarnation(store, key, None) or (identity.incarnation if identity else 1)


def _attempt(store: Store, run: str, node: str | None, body: dict[str, Any]) -> int:
    """The attempt the payload names, else the caller's, else the node's latest; 0 for what is of no node."""
    if "attempt" in body:
        return int(body["attempt"])
    if not node:
        return 0
    own = os.environ.get("GARRISON_ATTEMPT", "")
    if own.isdigit() and (os.environ.get("GARRISON_RUN"), os.environ.get("GARRISON_NODE")) == (run, node):
        return int(own)
    return resolve.latest_attempt(store.home, run, node) or 1


# --------------------------------------------------------------------------------------------------------- as commands


def main(argv: Sequence[str] | None = None) -> int:
    """The door's command line; returns the exit code."""
    work, options = _parser().parse(argv)
    return run_guarded(lambda: work(options), print_error_json)


def _parser() -> DoorParser:
    parser = DoorParser("signal_protocol.py", "Messages between the layers.", "read FILE")
    write = parser.command("write", _write, "write a signal; prints its file")
    for name in ("source", "target"):
        write.add_argument(name, metavar=name.upper(), help="role, role-name or role-name@run")
    write.add_argument("type", metavar="TYPE", help="MERGE_READY, GUIDANCE, …")
    write.add_argument("--payload", type=_payload, default={}, help="JSON object; node_id and run_id say who is meant")
    write.add_argument("--signals-dir", help="where inboxes lie (default: the home's signals/)")
    read = parser.command("read", _read, "show a signal as JSON")
    read.add_argument("path", metavar="PATH")
    wait = parser.command("wait", _wait, "wait for a signal and take it; exit 1 if none comes")
    wait.add_argument("target", metavar="TARGET", help="role, role-name or role-name@run")
    wait.add_argument("--timeout", type=seconds, default=60.0, help="seconds (default: 60)")
    wait.add_argument("--type", action="append", dest="types", help="only this type (repeatable)")
    wait.add_argument("--run")
    return parser


def _payload(text: str) -> dict[str, Any]:
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # argparse makes a usage error of ValueError
    return body


def _write(options: argparse.Namespace) -> None:
    print(write_signal(options.source, options.target, options.type, options.payload, options.signals_dir,
                       home=options.home))


def _read(options: argparse.Namespace) -> None:
    print_json(read_signal(options.path))


def _wait(options: argparse.Namespace) -> None:
    found = wait_for_signal(options.target, options.timeout, options.types, options.run, options.home)
    if found is None:
        raise NotFound(f"no signal for {options.target} came within {options.timeout:g} s")
    print_json(found)
