"""Imported first by every script: if this Python has no garrison, run the script again with the checkout's own.

Imports only gc, sys and os and runs on any Python 3, since cron's may be old. The import either returns with garrison
importable, or replaces the process, or ends with one line on what to run. A program of the user's that imports a script
is not run again, since it may have done something already: it gets the packages of the checkout's Python, if that is of
the same version. Scripts never shadow modules of the user's: their folder is searched last.
"""

# ruff: noqa: UP036
import gc
import os
import sys

_REEXECUTED = "GARRISON_DOOR_AGAIN"
_HERE = os.path.dirname(os.path.realpath(__file__))
_PYTHON = os.path.join(os.path.dirname(_HERE), ".venv", "bin", "python")
_NOT_SET_UP = "garrison is not set up in this checkout: run " + os.path.join(_HERE, "test") + " (or demo) first"


def _has_garrison():
    if sys.version_info < (3, 11):
        return False
    try:
        import garrison.errors  # every script needs it anyway
    except ImportError:
        return False
    return True


def _import_packages():
    """Add the packages of the checkout's Python to this program's; return whether garrison is among them."""
    folder = os.path.join(os.path.dirname(_HERE), ".venv", "lib", "python{}.{}".format(*sys.version_info[:2]),
                          "site-packages")
    if not os.path.isdir(folder):
        return False
    import site

    site.addsitedir(folder)
    return _has_garrison()


def _search_last():
    """Move the scripts' folder to the end of the search path: a user's `demo` or `cli` comes before ours."""
    found = [folder for folder in sys.path if os.path.realpath(folder or ".") == _HERE]
    sys.path[:] = [folder for folder in sys.path if folder not in found] + found[:1]


def _command_line():
    """Return this process's arguments for a second start; None in a program that merely imports a script."""
    script = sys.argv[0] if sys.argv else ""
    original = list(getattr(sys, "orig_argv", ()))[1:]
    if script == "-c":
        return original or None  # a one-line program, as agents' prompts contain
    if script and os.path.dirname(os.path.realpath(script)) == _HERE:
        return original or list(sys.argv)
    return None


def _ensure_garrison():
    if sys.argv and os.path.dirname(os.path.realpath(sys.argv[0])) == _HERE:
        gc.set_threshold(50000)  # as every command does: nothing that its imports make is garbage
    if _has_garrison():
        os.environ.pop(_REEXECUTED, None)  # children must not inherit it
        return
    arguments = _command_line()
    if arguments is None and _import_packages():
        return
    if arguments is None:
        raise ImportError(_NOT_SET_UP + ", then use " + _PYTHON)
    if os.environ.get(_REEXECUTED) or not os.access(_PYTHON, os.X_OK):
        sys.exit(_NOT_SET_UP)
    os.environ[_REEXECUTED] = "1"
    os.environ.pop("PYTHONHOME", None)  # it names the other Python's library
    os.execv(_PYTHON, [_PYTHON, *arguments])


_search_last()
_ensure_garrison()
