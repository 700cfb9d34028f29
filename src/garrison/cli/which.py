"""Which run and which node a person means; a name that is not there is answered with the nearest that is.

The rule of this room: it reads names and journals, no graph: completion asks it at every TAB.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from garrison.cli import resolve
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.records import atomic
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.names import Key, check_node, check_run
from garrison.records.run import RunFiles, runs
from garrison.records.store import Store


def known_run(home: Path, run: str) -> str:
    """`run`, if the home has it; NotFound, with the nearest."""
    have = runs(home)
    if check_run(run) not in have:
        raise NotFound(f"no run {run} in {home}; {nearest(run, have)}`garrison status` lists the runs")
    return run


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean x? ` for a name that is like one of `known`, else ''. Pure."""
    import difflib

    folded = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[found[0]]}? " if found else ""


def nodes_of(home: Path, run: str) -> list[str]:
    """The nodes of a run: those its guardian's journal names, those that run a pipeline, and those with a folder."""
    files = RunFiles(home, run)
    names: dict[str, None] = {}
    try:
        for entry in read_all(files.journal):
            named = [*entry.data.get("nodes", {}), *entry.data.get("outcomes", {})] if entry.kind == "snapshot" else (
                [entry.data["node"]] if entry.kind in ("node", "gate") else [])
            names |= dict.fromkeys(named)
    except (GarrisonError, KeyError):
        pass  # an unreadable journal is told by `status`; the folders are names enough here
    names |= dict.fromkeys(name.removesuffix(".dot") for name in sorted(atomic.names(files.graphs)))
    names |= dict.fromkeys(sorted(atomic.names(files.root / "nodes")))
    return list(names)


def run_of_node(store: Store, node: str, run: str | None) -> str:
    """The run in which a node is meant: the one given, else the only one that has it, else the one in which somebody
    works on it, else (it is parked, or its turn has not come) the one that is under way.

    NotFound, with the nearest name, if no run has it; Refused with the list if several could be meant.
    """
    check_node(node)
    asked = [known_run(store.home, run)] if run is not None else runs(store.home)
    having = {one: nodes_of(store.home, one) for one in asked}
    candidates = [Key("runner", node, one) for one, nodes in having.items() if node in nodes]
    known = dict.fromkeys(name for nodes in having.values() for name in nodes)
    where = f"run {run} has no node {node}" if run else f"no run in {store.home} has a node {node}"
    worked_on = [key for key in candidates if lives(store, key)] if len(candidates) > 1 else []
    return resolve.choose(candidates, resolve.own_run(),
                          lambda key: key in worked_on if worked_on else run_lives(store, key.run),
                          f"{where}; {nearest(node, known)}`garrison status{f' {run}' if run else ''}` shows "
                          f"{'its nodes' if run else 'the runs'}").run


def lives(store: Store, key: Key) -> bool:
    """Whether somebody works on a node: its runner or its agent."""
    return resolve.is_living(store, key) or resolve.is_living(store, Key("orchestrator", key.name, key.run))


def run_lives(store: Store, run: str) -> bool:
    """Whether anybody is there who could go on with a run."""
    return any(key.run == run and key.role in ("launch", "guardian") and resolve.is_living(store, key)
               for key in store.keys(Identity))


def run_with_guardian(store: Store, run: str | None) -> str:
    """The run that is meant: the one given, else the only one whose guardian lives, else the only one.

    NotFound if there is none; Refused with the list if several could be meant.
    """
    if run is not None:
        return known_run(store.home, run)
    guardians = [key for key in store.keys(Identity) if key.role == "guardian"]
    living = sorted({key.run for key in guardians if resolve.is_living(store, key)})
    found = living or runs(store.home)
    if not found:
        raise NotFound(f"no run in {store.home}; `garrison status` lists the runs")
    if len(found) > 1:
        raise Refused(f"several runs could be meant: {', '.join(found)}; say which with --run")
    return found[0]
