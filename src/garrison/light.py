"""Records without `dataclasses`, whose import (inspect, ast, dis, tokenize) costs more than bare Python's start, and
which compiles half a dozen methods for every class: of a layer's own start that was a third.

`dataclass`, `field`, `fields`, `replace` and `asdict` mean here what they mean there, for classes with plain
annotations and without inheritance; a type checker sees the originals. `dataclasses.replace`, `fields` and `asdict`
work on these classes too: their first use builds what they need.
"""

from __future__ import annotations

__all__ = ["MISSING", "asdict", "dataclass", "field", "fields", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import MISSING, asdict, dataclass, field, fields, replace
else:
    from _operator import itemgetter  # built in; `operator` itself is a file to read

    MISSING = object()

    class Field:
        """One field: name, annotation, default or default_factory (MISSING if none), and whether it is compared."""

        __slots__ = ("compare", "default", "default_factory", "name", "type")

        def __init__(self, default=MISSING, default_factory=MISSING, compare=True):
            self.name = self.type = ""
            self.default, self.default_factory, self.compare = default, default_factory, compare

    field = Field

    class _Twin:
        """`__dataclass_fields__`, made by the real dataclasses when they are asked about a light class."""

        def __get__(self, instance, owner):
            import dataclasses

            body = {"__annotations__": {one.name: one.type for one in owner.__light_fields__}}
            for one in owner.__light_fields__:
                given = {name: getattr(one, name) for name in ("default", "default_factory")
                         if getattr(one, name) is not MISSING}
                body[one.name] = dataclasses.field(**given, compare=one.compare, kw_only=False)
            twin = dataclasses.dataclass(type(owner.__name__, (), {**body, "__doc__": ""}), kw_only=True)
            owner.__dataclass_fields__ = twin.__dataclass_fields__
            return owner.__dataclass_fields__

    def dataclass(cls=None, *, frozen=False, order=False):
        """Make `cls` a record."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, order=order)
        cls.__light_fields__ = tuple(_collect(cls))
        cls.__match_args__ = tuple(one.name for one in cls.__light_fields__)
        cls._light_values = _getter([one.name for one in cls.__light_fields__ if one.compare])
        cls._light_names = frozenset(cls.__match_args__)
        cls._light_defaults = {one.name: one.default for one in cls.__light_fields__ if one.default is not MISSING}
        cls._light_factories = tuple((one.name, one.default_factory) for one in cls.__light_fields__
                                     if one.default_factory is not MISSING)
        cls._light_checked = hasattr(cls, "__post_init__")
        optional = [one.default is not one.default_factory for one in cls.__light_fields__]
        cls._light_made, cls._light_ordered = 0, optional == sorted(optional)
        cls.__dataclass_fields__ = _Twin()
        cls.__init__, cls.__repr__ = _init, _repr
        cls.__eq__, cls.__hash__ = _eq, _hash if frozen else None
        if frozen:
            cls.__setattr__ = cls.__delattr__ = _frozen
        if order:
            cls.__lt__, cls.__le__, cls.__gt__, cls.__ge__ = _lt, _le, _gt, _ge
        return cls

    def _collect(cls):
        for name, annotation in cls.__dict__.get("__annotations__", {}).items():  # noqa: RUF063  # no inspect
            default = cls.__dict__.get(name, MISSING)
            one = default if isinstance(default, Field) else Field(default)
            one.name, one.type = name, annotation
            if one.default is not MISSING:
                setattr(cls, name, one.default)
            elif default is one:
                delattr(cls, name)
            yield one

    def _init(self, *values, **named):
        cls = type(self)
        cls._light_made += 1
        if cls._light_made == _OFTEN and cls._light_ordered:
            cls.__init__ = _compiled(cls)
        state = self.__dict__
        state.update(cls._light_defaults)
        for name, factory in cls._light_factories:
            if name not in named:
                state[name] = factory()
        if values:
            given = cls.__match_args__[:len(values)]
            if len(values) > len(given) or not named.keys().isdisjoint(given):
                raise TypeError(f"{cls.__name__} takes {', '.join(cls.__match_args__)}, each once")
            state.update(zip(given, values))  # noqa: B905
        state.update(named)
        if state.keys() != cls._light_names:
            raise TypeError(_complaint(cls, state))
        if cls._light_checked:
            self.__post_init__()

    _OFTEN = 50
    """After so many instances a class gets a constructor of its own: a short command makes fewer and compiles none."""

    def _compiled(cls):
        """What `_init` does, for `cls` alone: a third of its time."""
        parameters, known = ["self"], {"absent": MISSING}
        for one in cls.__light_fields__:
            known[f"default_{one.name}"] = one.default
            known[f"make_{one.name}"] = one.default_factory
            parameters.append(one.name if one.default is one.default_factory else f"{one.name}=default_{one.name}")
        made = [f"    if {name} is absent: {name} = make_{name}()" for name, _ in cls._light_factories]
        values = ", ".join(f"{name!r}: {name}" for name in cls.__match_args__)
        after = ["    self.__post_init__()"] if cls._light_checked else []
        lines = [f"def __init__({', '.join(parameters)}):", *made, f"    self.__dict__.update({{{values}}})", *after]
        exec("\n".join(lines), known)  # of names that are in the source
        return known["__init__"]

    def _complaint(cls, state):
        missing = [name for name in cls.__match_args__ if name not in state]
        foreign = [name for name in state if name not in cls._light_names]
        return (f"{cls.__name__} needs a value for {', '.join(missing)}" if missing
                else f"{cls.__name__} has no field {', '.join(foreign)}")

    def _getter(names):
        """What gives the compared values of an instance's `__dict__`, which is asked for with every look-up."""
        if len(names) > 1:
            return staticmethod(itemgetter(*names))
        return staticmethod(lambda state: tuple(state[name] for name in names))

    def _values(self):
        return self._light_values(self.__dict__)

    def _repr(self):
        shown = ", ".join(f"{name}={self.__dict__[name]!r}" for name in type(self).__match_args__)
        return f"{type(self).__qualname__}({shown})"

    def _eq(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = self._light_values
        return self is other or values(self.__dict__) == values(other.__dict__)

    def _hash(self):
        return hash(self._light_values(self.__dict__))

    def _lt(self, other):
        return _values(self) < _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _le(self, other):
        return _values(self) <= _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _gt(self, other):
        return _values(self) > _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _ge(self, other):
        return _values(self) >= _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _frozen(self, name, value=None):
        raise AttributeError(f"cannot change {name} of a {type(self).__name__}; `replace` makes another one")

    def fields(kind):
        """The fields of a light class or record, or of a foreign dataclass."""
        known = getattr(kind, "__light_fields__", None)
        if known is None:
            from dataclasses import fields as original

            known = original(kind)
        return known

    def replace(record, **changes):
        """A record like `record` with some fields changed; a foreign dataclass is left to dataclasses."""
        if not hasattr(record, "__light_fields__"):
            from dataclasses import replace as original

            return original(record, **changes)
        return type(record)(**{**record.__dict__, **changes})

    def asdict(record):
        """A record's fields by name; records, lists, tuples and dictionaries within are copied likewise."""
        return {one.name: _plain(getattr(record, one.name)) for one in fields(record)}

    def _plain(value):
        if hasattr(value, "__light_fields__") or hasattr(value, "__dataclass_fields__"):
            return asdict(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(_plain, value))
        if isinstance(value, dict):
            return {key: _plain(item) for key, item in value.items()}
        return value
