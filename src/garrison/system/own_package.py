"""Garrison's own package while an upgrade replaces it: pip and pipx take it away, and put the new one in its place some
seconds later. What is to be started meanwhile waits, and names what is missing.

Two places see it. Whoever starts a process looks first (`find_missing`) and does not start it, as on a machine without
room (`shortage`). A process that was started into a package half there is told by its import: its first lines are no
part of the package (`FIRST_LINES`, in its command line), try again, and give up with an exit code of their own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

MODULE_MISSING = 72
"""Exit code of a process whose modules were not there for all of its time to start (EX_OSFILE)."""
PATIENCE = 24.0
"""Seconds for which a process that a supervisor starts tries to import its modules: less than its start may take."""
REPLACED_PATIENCE = 10.0
"""Seconds for one whose loaded modules are of the version before an upgrade: its successor has the new ones."""
LONG_PATIENCE = 600.0
"""Seconds for one that nobody waits for by a deadline: the connection of a session."""
FIRST_LINES = """\
import importlib, os, sys, time
patience, name, now = float(sys.argv.pop(1)), sys.argv.pop(1), time.monotonic()
since = float(os.environ.pop("GARRISON_MISSING_SINCE", now))
try:
    main = importlib.import_module(name).main
except (ImportError, SyntaxError, AttributeError, OSError) as error:
    if since == now:
        print(f"garrison: cannot import {name} ({error}): is an upgrade under way?"
              f" tried again for {patience:.0f} s", file=sys.stderr, flush=True)
    if now - since > patience:
        sys.exit(72)
    time.sleep(0.2)
    os.environ["GARRISON_MISSING_SINCE"] = str(since)
    os.execv(sys.executable, sys.orig_argv)
sys.missing_since = since
sys.exit(main())
"""
"""Import the module of the second argument and call its `main`. It begins anew in a fresh interpreter as long as the
module cannot be imported: one that failed half way has modules of both versions."""
_MAIN = "garrison.processes.main"


def module_argv(module: str, patience: float = PATIENCE) -> tuple[str, ...]:
    """Return the words that run the `main` of one of garrison's modules once it can be imported; its arguments follow.

    Args:
        patience: seconds for which it is tried.
    """
    # -P: a module in the working directory must not shadow one of ours.
    return (sys.executable, "-P", "-c", FIRST_LINES, f"{patience:g}", module)


def begin_again() -> None:
    """Replace this process by one that begins anew, since a module is missing and it has done nothing yet; return once
    its patience is over, or if it was not started by `FIRST_LINES`."""
    since = getattr(sys, "missing_since", None)
    if since is not None and time.monotonic() - since <= PATIENCE:
        time.sleep(0.2)
        os.environ["GARRISON_MISSING_SINCE"] = str(since)
        os.execv(sys.executable, sys.orig_argv)


def find_missing(package: Path = Path(__file__).parents[1], python: str = sys.executable) -> str:
    """Return what of garrison is not there now, so that no process of it could start; '' if nothing is."""
    for module, path in ((f"garrison ({package})", package), (_MAIN, package / "processes" / "main.py")):
        if not path.exists():
            return f"garrison's own module {module} is missing"
    return "" if os.path.exists(python) else f"its Python {python} is missing"  # noqa: PTH110  # a string


def is_replaced(error: BaseException) -> bool:
    """Return whether an error tells that a module on the disk does not fit those that this process has loaded: they are
    of the version before an upgrade, which no waiting mends."""
    return isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError) and error.name in sys.modules


def is_own(error: BaseException) -> bool:
    """Return whether an error is of a module, or of a file of garrison's package, that was not there when needed."""
    if isinstance(error, ImportError):
        return True
    return isinstance(error, FileNotFoundError) and isinstance(error.filename, str | bytes | os.PathLike) \
        and Path(os.fsdecode(error.filename)).is_relative_to(Path(__file__).parents[1])
