"""Python functions as tools, by where they stand: `package.module:function`, or `path/to/file.py:function`.

The rule of this room: a module is looked for beside the workflow's file first, then where Python looks; a file's path
is relative to the workflow's file. Whatever is not there, or fails while it is loaded, is one line that names the tool.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from garrison.workflow.errors import ToolNotFoundError
from garrison.workflow.models import Workflow

MARK = ":"


def python_tools(workflow: Workflow, base: Path) -> dict[str, Callable[..., Any]]:
    """The functions that the workflow's steps name; ToolNotFoundError for one that cannot be had."""
    names = dict.fromkeys(step.tool for step in workflow.steps if MARK in step.tool)
    return {name: load(name, base) for name in names}


def load(name: str, base: Path) -> Callable[..., Any]:
    """The function that `name` means, for a workflow whose file lies in `base`."""
    where, _, attribute = name.rpartition(MARK)
    try:
        module = _from_file(base / where) if where.endswith(".py") else _imported(where, base)
    except ToolNotFoundError as error:
        raise ToolNotFoundError(f"the tool {name!r:.120}: {error}") from error
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:300]
        raise ToolNotFoundError(f"the tool {name!r:.120}: {where} fails while it is loaded ({type(error).__name__}: "
                                f"{said})") from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        have = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
                and getattr(value, "__module__", None) == module.__name__]
        near = get_close_matches(attribute, have, 1, 0.6)
        there = f"did you mean {near[0]}?" if near else f"it has {', '.join(have[:8]) or 'none'}"
        raise ToolNotFoundError(f"the tool {name!r:.120}: {where} has no function {attribute!r:.60}; {there}")
    return found  # type: ignore[no-any-return]


def _imported(where: str, base: Path) -> ModuleType:
    with _looking_in(base):
        importlib.invalidate_caches()
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
                raise ToolNotFoundError(f"there is no module {error.name}, neither in {base} nor where Python looks"
                                        ) from error
            raise
        except (TypeError, ValueError) as error:
            raise ToolNotFoundError(f"{where!r:.60} is no module; write package.module:function") from error


@contextmanager
def _looking_in(base: Path) -> Any:
    sys.path.insert(0, str(base))
    try:
        yield
    finally:
        sys.path.remove(str(base))


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ToolNotFoundError(f"there is no file {path}")
    name = f"garrison_tool_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the file's look it up
    with _looking_in(path.parent):
        spec.loader.exec_module(module)
    return module
