"""`@frozen`: a dataclass whose fields never change.

It is `@dataclass(frozen=True)` for reader, type checker, `replace`, `fields` and `asdict`. `dataclasses` compiles six
methods for each such class, and a guardian has 200 of them when it starts: a third of its start. Here only `__init__`
is compiled, at the first instance, since most classes get none; the other methods are ordinary functions.
"""

from __future__ import annotations

import types
from dataclasses import FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of `cls`; methods that `cls` defines itself stay."""
    own = vars(cls).copy()
    made = dataclass(init=False, eq=False, repr=False)(cls)
    setattr(made, "__init__", _initializer(made))  # noqa: B010
    equal, hashed = _comparison(tuple(each.name for each in fields(made) if each.compare))  # type: ignore[arg-type]
    for name, method in (("__eq__", equal), ("__hash__", hashed), ("__repr__", _describe), ("__setattr__", _set_once),
                         ("__delattr__", _refuse_deletion)):
        if own.get(name) is None:
            setattr(made, name, method)
    return made


def _initializer(cls: type[T]) -> Callable[..., None]:
    """Return an `__init__` that is replaced by the compiled one when it is called."""
    def initialize(self: T, *values: object, **named: object) -> None:
        # of a subclass, which has all fields: threads may make the first instances of `cls` at the same time
        heir: Any = dataclass(eq=False, repr=False)(types.new_class(cls.__name__, (cls,)))
        compiled = heir.__init__
        compiled.__qualname__ = f"{cls.__qualname__}.__init__"
        setattr(cls, "__init__", compiled)  # noqa: B010
        compiled(self, *values, **named)

    return initialize


def _comparison(names: tuple[str, ...]) -> tuple[Callable[[object, object], bool], Callable[[object], int]]:
    """Return `__eq__` and `__hash__` of a class whose fields `names` are compared."""
    values: Callable[[object], object] = attrgetter(*names) if names else lambda _: ()

    def equal(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: object) -> int:
        return hash(values(self))

    return equal, hashed


def _describe(self: DataclassInstance) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _set_once(self: object, name: str, value: object) -> None:
    """Set a field, which `__init__` does once; FrozenInstanceError afterwards."""
    if name in self.__dict__:
        raise FrozenInstanceError(f"{type(self).__name__}.{name} is frozen; `replace` makes a changed copy")
    object.__setattr__(self, name, value)


def _refuse_deletion(self: object, name: str) -> None:
    raise FrozenInstanceError(f"{type(self).__name__}.{name} is frozen")
