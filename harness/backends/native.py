"""Wraps caches that are not written in Python, and objects that are not caches.

If such an object raises an exception, the traceback contains no frame of the object, so
the exception would look like an exception in the harness. The wrapper adds frames of this
module, so that the exception counts as an exception of the backend; see
`core.errors.find_own_place`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from inspect import getattr_static
from types import FunctionType
from typing import Any

METHODS = ("update", "read", "forward", "begin", "schedule")
"""Each kind of cache has a method with one of these names."""

OTHERS = ("clone", "of", "cache", "extract")
"""The methods and attributes that return another cache."""


class NativeCache:
    """A wrapper that has the attributes and methods of a cache."""

    def __init__(self, native: Any) -> None:
        self.native = native

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.native, name)
        if not callable(member):
            return wrap_native(member) if name in OTHERS else member

        def call(*arguments: Any) -> Any:
            result = member(*map(unwrap_native, arguments))
            return wrap_native(result) if name in OTHERS else result

        setattr(self, name, call)  # avoids further lookups
        return call


def wrap_native(cache: Any) -> Any:
    """Wraps a cache, unless all of its methods are Python functions."""
    kind: Any = type(cache)
    is_cache = any(hasattr(cache, name) for name in METHODS)
    return NativeCache(cache) if is_native(kind) or not is_cache else cache


@cache
def is_native(kind: Any) -> bool:
    """Returns whether a class has a method that is not a Python function."""
    methods = (getattr_static(kind, name, None) for name in METHODS)
    return any(method and not isinstance(method, FunctionType) for method in methods)


def unwrap_native(value: Any) -> Any:
    return value.native if isinstance(value, NativeCache) else value


def open_native(open_cache: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a version of `open_cache` that wraps native caches."""

    @wraps(open_cache)
    def open_wrapped(config: Mapping[str, Any]) -> Any:
        if config.get("caches"):
            config = {**config, "caches": [*map(unwrap_native, config["caches"])]}
        return wrap_native(open_cache(config))

    return open_wrapped
