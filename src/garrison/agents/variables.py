"""Variables in a profile's texts: `${NAME}`, or `${NAME:-default}`, as a shell has them. Pure.

An agent may need what garrison passes in variables, such as its model's base URL, in a file or an option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from garrison.errors import Refused, UsageError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_BRACED = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_NAMED = re.compile(r"(?:\$\{|\{env:)([A-Za-z_][A-Za-z0-9_]*)")
OWN = "GARRISON_"
"""Prefix of variables that garrison itself sets for an agent."""


def references(text: str) -> list[str]:
    """Return the names of the variables in a text, also in the form `{env:NAME}` of command agents."""
    return _NAMED.findall(text)


def expand(text: str, env: Mapping[str, str], where: str) -> str:
    """Return a text with its variables replaced; UsageError, starting with `where`, for one that is not set."""
    def value(found: re.Match[str]) -> str:
        name, default = found.groups()
        if env.get(name):
            return env[name]
        if default is None:
            raise UsageError(f"{where} names ${{{name}}}, which is not set; name it in env and set it where you "
                             f"launch, or give a default: ${{{name}:-…}}")
        return str(default)

    return _REFERENCE.sub(value, text)


def fill_variables(word: str, environment: Mapping[str, str], name: str) -> str:
    """Fill the {env:NAME} and {env:NAME:-default} in one word of an argv; Refused for one that is not set."""
    def value(found: re.Match[str]) -> str:
        text = environment.get(found[1]) or found[2]
        if text is None:
            raise Refused(f"agent {name}: argv names {found[0]}, which is not set; name it in env and set it where you "
                          f"launch, or give a default: {{env:{found[1]}:-…}}")
        return str(text)

    return _BRACED.sub(value, word)
