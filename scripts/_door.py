"""What every door does first: if this Python has no garrison, run the same command again with the checkout's own.

The rule of this file: it imports only sys and os and is written for any Python 3, since cron's may be old. Importing it
either returns with garrison importable, or replaces the process, or says in one line what to run.
"""

# ruff: noqa: PTH118, PTH120, UP036
import os
import sys

_AGAIN = "GARRISON_DOOR_AGAIN"
_HERE = os.path.dirname(os.path.realpath(__file__))
_PYTHON = os.path.join(os.path.dirname(_HERE), ".venv", "bin", "python")
_SAY = "garrison is not set up in this checkout: run " + os.path.join(_HERE, "test") + " (or demo) first"


def _has_garrison():
    if sys.version_info < (3, 11):
        return False
    try:
        import garrison.errors  # noqa: F401  # every door needs it anyway
    except ImportError:
        return False
    return True


def _again():
    """The command line to run again; None if this process is not one of ours to replace (a program that imports us)."""
    script = sys.argv[0] if sys.argv else ""
    given = list(getattr(sys, "orig_argv", ()))[1:]
    if script == "-c":
        return given or None  # a one-line program, such as agents' prompts hold
    if script and os.path.dirname(os.path.realpath(script)) == _HERE:
        return given or list(sys.argv)
    return None


def _open():
    if _has_garrison():
        os.environ.pop(_AGAIN, None)  # children are not to inherit it
        return
    command = _again()
    if command is None:
        raise ImportError(_SAY + ", then use " + _PYTHON)
    if os.environ.get(_AGAIN) or not os.access(_PYTHON, os.X_OK):
        sys.exit(_SAY)
    os.environ[_AGAIN] = "1"
    os.environ.pop("PYTHONHOME", None)  # it names the other Python's library
    os.execv(_PYTHON, [_PYTHON, *command])


_open()
