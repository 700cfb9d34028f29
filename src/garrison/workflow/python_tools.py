"""Python functions as tools: `package.module:function`, or `path/to/file.py:function`.

A module is searched for beside the workflow's file first, then on `sys.path`; a file's path is relative to the
workflow's file. A missing tool, or one that fails to load, is a one-line error that names the tool.
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

SEPARATOR = ":"


def python_tools(workflow: Workflow, base: Path) -> dict[str, Callable[..., Any]]:
    """Return the functions that the workflow's steps name; ToolNotFoundError for one that cannot be loaded."""
    names = dict.fromkeys(step.tool for step in workflow.steps if SEPARATOR in step.tool)
    return {name: load_tool(name, base) for name in names}


def load_tool(name: str, base: Path) -> Callable[..., Any]:
    """Return the function that `name` refers to, for a workflow whose file is in `base`."""
    location, _, attribute = name.rpartition(SEPARATOR)
    try:
        module = _load_file(base / location) if location.endswith(".py") else _import_module(location, base)
    except ToolNotFoundError as error:
        raise ToolNotFoundError(f"the tool {name!r:.120}: {error}") from error
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())[:300]
        raise ToolNotFoundError(f"the tool {name!r:.120}: {location} fails to load ({type(error).__name__}: "
                                f"{message})") from error
    function: Any = module
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
                 and getattr(value, "__module__", None) == module.__name__]
        near = get_close_matches(attribute, names, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names[:8]) or 'none'}"
        raise ToolNotFoundError(f"the tool {name!r:.120}: {location} has no function {attribute!r:.60}; {hint}")
    return function  # type: ignore[no-any-return]


def _import_module(name: str, base: Path) -> ModuleType:
    with _on_path(base):
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
                raise ToolNotFoundError(f"no module {error.name}, neither in {base} nor on Python's path"
                                        ) from error
            raise
        except (TypeError, ValueError) as error:
            raise ToolNotFoundError(f"{name!r:.60} is no module; write package.module:function") from error


@contextmanager
def _on_path(base: Path) -> Any:
    sys.path.insert(0, str(base))
    try:
        yield
    finally:
        sys.path.remove(str(base))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ToolNotFoundError(f"no file {path}")
    name = f"garrison_tool_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    with _on_path(path.parent):
        spec.loader.exec_module(module)
    return module
