"""Signals: `garrison signals` lists and sends them, `signal_protocol.py` writes, reads and waits for them.

A bare role is resolved to a full name with the payload: by `node_id` for a runner or orchestrator, by the run for a
guardian, launcher or processor. The functions return records, which the commands print as JSON; refusals are
GarrisonErrors.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from garrison.cli import resolve
from garrison.cli.authority import guarded
from garrison.cli.commands import Group, run_command
from garrison.cli.options import (
    SECONDS,
    home_option,
    json_or_text,
    node_options,
    output_options,
    quiet_option,
    run_option,
    use_home,
)
from garrison.cli.output import QUIET, print_error_json, print_json, print_message, print_record, print_table
from garrison.directories import checkout, find_home
from garrison.errors import NotFound, RecordError, Refused, UsageError
from garrison.records import atomic, record
from garrison.records import run as run_records
from garrison.records import signals as signal_records
from garrison.records.identity import ALIVE, Identity
from garrison.records.names import ROLES, Key, check_run
from garrison.records.run import Launch, RunFiles
from garrison.records.signals import SendPipelineSignal, Signal
from garrison.records.store import Store, new_id
from garrison.run.user_signals import signal_by_person
from garrison.system.clock import SystemClock, wait_until
from garrison.values import Value, fields_of

_INBOX_FOLDERS = {"waiting": "", "taken": "taken", "refused": "refused"}
"""State of a signal → folder of the inbox."""
_NODE_ROLES = ("runner", "orchestrator")
_WORD = re.compile(r"[A-Za-z0-9_@.-]{1,120}")
"""Side or type of a signal in a folder of the caller, used in file names."""
APPLIED_WITHIN = 2.0
"""Seconds to wait for the guardian to apply a signal."""
DECIDED_WITHIN = 15.0
"""Seconds to wait for the guardian to take or refuse a request; a killed guardian is back by then."""
_POLL = 0.05
"""Seconds between two reads of an inbox while waiting."""

# ---------------------------------------------------------------------------------------- functions of signal_protocol


@guarded("signal-protocol write")
def write_signal(source: str, target: str, type: str, payload: Mapping[str, object] | None = None,
                 signals_dir: str | os.PathLike[str] | None = None, *, home: str | None = None) -> str:
    """Write a signal into its recipient's inbox and return the path of its file.

    Without a node to notify (`node_id` is empty, as after an empty merge queue) nothing is written and '' returned.

    The run is `payload["run_id"]`, else the run of a full name, else GARRISON_RUN; else it is derived from the records
    and inboxes: a name by hand, or in only one run, belongs there, and others are refused.

    Args:
        source: sender as role (`runner`), name (`runner-impl_auth`) or full name (`runner-impl_auth@run`).
        target: recipient, in the same forms.
        type: one of the signal types.
        payload: content; `node_id` and `run_id` in it resolve bare roles.
        signals_dir: folder of the caller for the signal, in the original's form.
    """
    body = payload or {}
    if (folder := own_folder(signals_dir)) is not None:
        return _write_into(folder, source, target, type, body)
    if not signal_records.is_type(type):
        raise UsageError(f"not a signal type: {type!r}; types are {signal_records.list_types()}")
    node = _node_of(body)
    if target in _NODE_ROLES and node == "":
        print_message(f"no {type} is sent: there is no node whose {target} could get it")
        return ""
    store = resolve.open_store(home)
    run = _run_of(store, body, target, source)
    sender = _resolve_name(store, source, run, node, must_exist=False)
    recipient = _resolve_name(store, target, run, node, must_exist=True)
    signal = Signal(
        new_id()[:12], {"role": sender.role, "name": sender.name, "incarnation": _incarnation_of(store, sender)},
        {"role": recipient.role, "name": recipient.name}, type, run, SystemClock().utc(), node,
        _attempt(store, run, node, body), dict(body))
    return str(signal_records.post(store.home, signal))


def own_folder(signals_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return a folder of the caller; None for the home's inboxes, since prompts name the folder near the scripts."""
    if signals_dir is None:
        return None
    source, folder = checkout(), Path(os.path.abspath(signals_dir))  # noqa: PTH100
    return None if source is not None and folder == source / "pipelines" / "signals" else folder


def _write_into(folder: Path, source: str, target: str, type: str, payload: Mapping[str, object]) -> str:
    if bad := [word for word in (source, target, type) if not _WORD.fullmatch(word)]:
        raise UsageError(f"not a name: {bad[0]!r}; it is used in the file name of a signal")
    atomic.make_directory(folder / "processed")
    with atomic.locked(folder / ".lock"):
        while True:
            stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
            path = folder / f"{stamp}-{source}-{target}-{type}.json"
            # two calls within one microsecond, or after the clock was set back, must not write the same file
            if not os.path.lexists(path):
                break
        atomic.write(path, json.dumps({"source": source, "target": target, "signal_type": type, "timestamp": stamp,
                                       "payload": dict(payload)}, indent=2).encode())
    return str(path)


def read_signal(path: str | os.PathLike[str]) -> Signal:
    """Return the signal in a file; NotFound if the file is gone, RecordCorrupt if it contains no signal."""
    try:
        return signal_records.read(Path(path))
    except FileNotFoundError:
        raise NotFound(f"no signal {path}; it may have been taken (see taken/ next to it)") from None


@guarded("signal-protocol wait")
def wait_for_signal(target: str, timeout: float = 60.0, types: Sequence[str] | None = None, run: str | None = None,
                    home: str | None = None) -> Signal | None:
    """Return the oldest signal waiting for `target`, of one of `types`; None after `timeout` seconds.

    The signal is removed from the inbox, unless another living process owns the inbox and has to handle it.
    """
    store = resolve.open_store(home)
    body = {} if run is None else {"run_id": run}
    recipient = _resolve_name(store, target, _run_of(store, body, target), os.environ.get("GARRISON_NODE"),
                              must_exist=False)
    deadline = time.monotonic() + timeout
    while True:
        signal = _take_oldest(store, recipient, types)
        if signal is not None or time.monotonic() >= deadline:
            return signal
        time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))


def _take_oldest(store: Store, recipient: Key, types: Sequence[str] | None) -> Signal | None:
    folder = signal_records.inbox_path(store.home, recipient)
    if not folder.is_dir():
        return None
    with atomic.locked(folder / ".waiting.lock"):  # two waiting callers must not get the same signal
        for posted in signal_records.list_pending(store.home, recipient):
            if posted.signal is not None and (types is None or posted.signal.signal_type in types):
                # signals for a living process are shown and stay: taking them here would lose them
                if not _is_read_by_other_process(store, recipient):
                    signal_records.acknowledge(posted.path)
                return posted.signal
    return None


def _is_read_by_other_process(store: Store, key: Key) -> bool:
    identity = store.read(Identity, key)
    if identity is None or identity.pid is None or not resolve.is_living(store, key):
        return False
    return resolve.current_process() != (key.run, Key(key.role, key.name).full)


def _run_of(store: Store, body: Mapping[str, object], target: str, source: str = "") -> str:
    """Return the run of names and payload; '' for records by hand.

    A name without a run is the full name of a record by hand; else it belongs to the only place with a record or inbox
    of that name. A bare role belongs to the source's place, or else to the only run at work.
    """
    given = body.get("run_id") or next((name.partition("@")[2] for name in (target, source) if "@" in name), "")
    if given or resolve.current_run():
        return check_run(str(given or resolve.current_run()))
    node = _node_of(body)
    role, name = _parts(target, node)
    places = _places(store, role, name)
    if source and not name and _parts(source, node)[1]:  # a bare role belongs to the source's chain
        own = _places(store, *_parts(source, node))
        places = own if len(own) == 1 else places & own or places
    if not places:
        return ""
    living = {key.run for key in store.keys(Identity) if key.run in places and resolve.is_living(store, key)} \
        if not name and len(places) > 1 and "" not in places else set()
    if len(possible := living or places) == 1:
        return possible.pop()
    found = Key(role, name).full if name else role
    raise Refused(f"{found} is in several places, choose one with run_id in the payload"
                  f"{f' or as {found}@RUN' if name else ''}: "
                  f"{', '.join(sorted(place or 'by hand (no run)' for place in places))}")


def _node_of(body: Mapping[str, object]) -> str | None:
    node = body.get("node_id")
    return None if node is None else str(node)


def _parts(name: str, node: str | None) -> tuple[str, str]:
    """Return the role and name of a role, name or full name; the name is '' if only the role is known."""
    if name not in ROLES:
        key = Key.parse(name)
        return key.role, key.name
    return name, node or "" if name in _NODE_ROLES else "launch" if name == "launch" else ""


def _places(store: Store, role: str, name: str) -> set[str]:
    """Return the runs with a record or inbox of that role and name, else those that will have one.

    '' stands for by hand, which takes precedence for a name.
    """
    known = {*store.keys(Identity), *_inboxes(store.home)}
    if found := {key.run for key in known if key.role == role and name in ("", key.name)}:
        return {""} if name and "" in found else found
    launches = {run: run_records.load(Launch, RunFiles(store.home, run).launch)
                for run in run_records.list_runs(store.home)}
    return {run for run, launch in launches.items() if launch is not None and (
        name in resolve.nodes_of(store.home, run) if role in _NODE_ROLES else
        role == "launch" or name in ("", launch.pipeline_id))}


def _resolve_name(store: Store, name: str, run: str, node: str | None, *, must_exist: bool) -> Key:
    """Return the key of a role or name in `run`; a sender, or a waiting caller, needs no record."""
    if name not in ROLES:
        key = Key.parse(name)
        return Key(key.role, key.name, run)
    if name == "launch":
        return Key("launch", "launch", run)
    if name in _NODE_ROLES and node:
        return Key(name, node, run)
    candidates = [key for key in store.keys(Identity) if (key.role, key.run) == (name, run)
                  and (run or not must_exist or store.get(Identity, key).status in ALIVE)]
    if len(candidates) == 1:
        return candidates[0]
    launch = run_records.load(Launch, RunFiles(store.home, run).launch) if run else None
    if launch is not None and name not in _NODE_ROLES:
        return Key(name, launch.pipeline_id, run)
    if not must_exist:
        return Key(name, name, run)
    existing = f"several ({', '.join(key.full for key in candidates)})" if candidates else "none"
    where = f"run {run} has" if run else "by hand, without a run, there is"
    raise NotFound(f"which {name}? {where} {existing}; put node_id in the payload, or use {name}-NAME")


def _incarnation_of(store: Store, key: Key) -> int:
    identity = store.read(Identity, key)
    return resolve.writer_incarnation(store, key, None) or (identity.incarnation if identity else 1)


def _attempt(store: Store, run: str, node: str | None, body: Mapping[str, object]) -> int:
    """Return the attempt in the payload, else the caller's, else the node's latest; 0 without a node."""
    if "attempt" in body:
        return int(str(body["attempt"]))
    if not node:
        return 0
    own = os.environ.get("GARRISON_ATTEMPT", "")
    if own.isdigit() and (os.environ.get("GARRISON_RUN"), os.environ.get("GARRISON_NODE")) == (run, node):
        return int(own)
    return RunFiles(store.home, run).latest_attempt(node) or 1


# ------------------------------------------------------------------------------------------- signals sent for the user


def wait_until_applied(signal: Path) -> None:
    """Wait briefly for the guardian to apply a signal; a busy guardian applies it later."""
    wait_until(lambda: not signal.exists(), APPLIED_WITHIN, 0.02)


def await_decision(store: Store, run: str, posted: Path) -> bool:
    """Wait for the guardian of a run to apply a request; return False if it will do so later.

    Refused, with the reason, if it refuses. A request that comes too late, in an ended run, is withdrawn.
    """
    deadline = time.monotonic() + DECIDED_WITHIN
    while posted.exists():
        is_alone = not resolve.is_run_supervised(store, run)
        # no process reads it in an ended run, and a run resumed much later must not obey it
        if is_alone and resolve.state_of(store, run).over:
            signal_records.refuse(posted, f"run {run} is over")
            break
        if is_alone or time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    if why := _refusal(posted.parent / "refused" / posted.name):
        raise Refused(why)
    return True


def guardian_of(store: Store, run: str) -> Key | None:
    """Return the guardian of a run; None for an ad-hoc run or one without a launch record."""
    launch = run_records.load(Launch, RunFiles(store.home, run).launch)
    return None if launch is None or launch.adhoc else Key("guardian", launch.pipeline_id, run)


# ----------------------------------------------------------------------------------------------------- garrison signals


@click.group(cls=Group)
def signals() -> None:
    """List the signals between garrison's processes, and send one to a pipeline."""


@signals.command("list", examples=(
    ("garrison signals list --run crew-1", "all signals of a run, oldest first"),
    ("garrison signals list --unacked --json", "those not yet taken, for programs"),
))
@click.option("--unacked", is_flag=True, help="Only signals not yet taken.")
@run_option
@output_options
def list_command(unacked: bool, run: str | None, as_json: bool, home: str | None) -> None:
    """List signals, oldest first, with their state: waiting, taken or refused (with the reason)."""
    place = find_home(home)
    of_run = None if run is None else check_run(run)
    listed = [each for key in _inboxes(place) if of_run is None or key.run == of_run
              for state in (["waiting"] if unacked else _INBOX_FOLDERS) for each in _signals_in(place, key, state)]
    listed.sort(key=lambda each: (each.signal.timestamp, each.file))
    if as_json:
        print_json([each.body() for each in listed])
        return
    rows = [(each.signal.timestamp, each.state, each.sender, each.to, each.signal.signal_type, each.signal.node_id,
             each.signal.attempt or "", each.reason) for each in listed]
    print_table(("TIME", "STATE", "FROM", "TO", "TYPE", "NODE", "ATTEMPT", "REASON"), rows, f"no signals in {place}")


@signals.command(examples=(
    ("garrison signals send deployed --run crew-1", "nodes that wait for `deployed` continue"),
    ("garrison signals send deployed '{\"version\": 7}'", "with a value"),
))
@click.argument("name")
@click.argument("value", required=False)
@node_options
def send(name: str, value: str | None, run: str | None, home: str | None) -> None:
    """Send the signal NAME to the pipeline of a run, so that a wait.signal node continues.

    VALUE (JSON, else text; default true) becomes `signal.NAME` in the pipeline's context. A signal is kept until a node
    waits for it.
    """
    store = resolve.open_store(home)
    if run is not None and not resolve.is_launched(store.home, run):
        from garrison.cli.pipeline_run import find_engine_run, send_pipeline_signal

        if (engine_run := find_engine_run(run, home)) is not None:
            send_pipeline_signal(engine_run, name, "" if value is None else json.dumps(json_or_text(value)))
            return
    chosen = resolve.supervised_run(store, run)
    guardian = guardian_of(store, chosen)
    if guardian is None:
        raise NotFound(f"run {chosen} has no pipeline; `garrison status` lists the runs")
    signal_records.post(store.home, signal_by_person(
        guardian, SendPipelineSignal(name, True if value is None else json_or_text(value))))
    print_message(f"signal {name} sent" + (
        "" if resolve.is_living(store, guardian) else
        f"; run {chosen} receives it when resumed: `garrison resume {chosen}`"))


class ListedSignal(Value):
    """Signal in an inbox."""

    signal: Signal
    to: str
    state: str
    reason: str
    """Why it was refused, '' if it was not."""
    file: str

    @property
    def sender(self) -> str:
        source = self.signal.source
        return f"{source['role']}-{source['name']}#{source.get('incarnation', '?')}"

    def body(self) -> dict[str, object]:
        """Return it as JSON values: the fields of the signal, and its place."""
        place = {name: value for name, value in fields_of(self).items() if name != "signal"}
        return {**record.to_dict(self.signal), **place}


def _inboxes(home: Path) -> Iterator[Key]:
    folder = home / "signals"
    for name in sorted(atomic.list_names(folder)):
        try:
            yield Key.parse(name)
        except UsageError:
            print_message(f"{folder / name} is not an inbox; skipped")


def _signals_in(home: Path, key: Key, state: str) -> Iterator[ListedSignal]:
    folder = home / "signals" / key.full / _INBOX_FOLDERS[state]
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            signal = signal_records.read(path)
        except FileNotFoundError:
            continue
        except RecordError as error:
            print_message(str(error))
            continue
        yield ListedSignal(signal, key.full, state, _refusal(path), str(path))


def _refusal(path: Path) -> str:
    """Return why a signal was refused, '' if it was not."""
    try:
        return path.with_name(f"{path.name}.reason").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


# -------------------------------------------------------------------------------------------------- signal_protocol.py


@click.group(cls=Group, epilog="Example: signal_protocol.py wait guardian-crew --type MERGE_READY")
@quiet_option
@home_option
def signal_protocol(home: str | None) -> None:
    """Write, read and wait for signals between garrison's processes."""
    use_home(home)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `signal_protocol.py`; returns the exit code."""
    return run_command(signal_protocol, argv, "signal_protocol.py", report=print_error_json)


def _parse_payload(_ctx: click.Context, _param: click.Parameter, text: str) -> dict[str, object]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise click.BadParameter("not a JSON object")
    return body


@signal_protocol.command("write")
@click.argument("source")
@click.argument("target")
@click.argument("type")
@click.option("--payload", default="{}", callback=_parse_payload, metavar="JSON",
              help="JSON object; node_id and run_id in it resolve bare roles.")
@click.option("--timeout", type=SECONDS, default=0.0, help="Seconds to wait for a recipient that has not registered.")
@click.option("--signals-dir", metavar="DIR",
              help="Folder of the caller, in the original's form (default: the home).")
@quiet_option
@home_option
@click.pass_context
def write_command(context: click.Context, source: str, target: str, type: str, payload: dict[str, object],
                  signals_dir: str | None, home: str | None, timeout: float) -> None:
    """Write a signal of TYPE (MERGE_READY, GUIDANCE …) and print its file.

    SOURCE and TARGET are a role, role-name or role-name@run.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            path = write_signal(source, target, type, payload, signals_dir, home=home)
            break
        except NotFound:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL)
    print('{"status": "ok"}' if context.meta.get(QUIET) else path)


@signal_protocol.command("read")
@click.argument("path")
@home_option
def read_command(path: str, home: str | None) -> None:
    """Show the signal in the file PATH as JSON."""
    print_record(read_signal(path))


@signal_protocol.command("wait")
@click.argument("target")
@click.option("--timeout", type=SECONDS, default=60.0, show_default=True, help="Seconds to wait.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only this type (repeatable).")
@click.option("--run", metavar="RUN", help="Run, if TARGET exists in several.")
@home_option
def wait_command(target: str, timeout: float, types: tuple[str, ...], run: str | None, home: str | None) -> None:
    """Wait for a signal to TARGET and take it. Exit code 1 if none comes. TARGET: a role, role-name or
    role-name@run."""
    signal = wait_for_signal(target, timeout, types or None, run, home)
    if signal is None:
        raise NotFound(f"no signal for {target} came within {timeout:g} s")
    print_record(signal)
