"""What a shell completes: runs, nodes and names of the home that is meant. Called at every TAB, so quick and silent.

The rule of this room: imported by every command, so it imports nothing itself; whatever goes wrong, nothing is offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import click


def runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Run ids, the youngest first."""
    from garrison.records.run import runs as known

    return _begun(lambda home: list(reversed(known(home))), ctx, incomplete)


def nodes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Nodes of the run on the command line, else of all runs."""
    from garrison.cli.which import nodes_of
    from garrison.records.run import runs as known

    run = ctx.params.get("run")
    return _begun(lambda home: [node for one in ([run] if run else reversed(known(home)))
                                for node in nodes_of(home, one)], ctx, incomplete)


def names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of identities, of the role on the command line if it is there."""
    from garrison.records.identity import Identity
    from garrison.records.store import Store

    role = ctx.params.get("role")
    return _begun(lambda home: [key.name for key in Store(home).keys(Identity) if role in (None, key.role)], ctx,
                  incomplete)


def _begun(known: Callable[[Path], list[str]], ctx: click.Context, incomplete: str) -> list[str]:
    from garrison.errors import GarrisonError
    from garrison.settings import find_home

    home = ctx.params.get("home") or ctx.find_root().params.get("home")
    try:
        return [name for name in dict.fromkeys(known(find_home(home))) if name.startswith(incomplete)]
    except (GarrisonError, OSError):
        return []
