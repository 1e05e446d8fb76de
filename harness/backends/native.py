"""Python methods for caches that are not written in Python, and for objects that are not
caches.

Their exceptions have no frame in the traceback. The frames of this module keep such an
exception from counting as one of the harness; see `core.errors.find_own_place`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from inspect import getattr_static
from types import FunctionType
from typing import Any

METHODS = ("update", "read", "forward", "begin", "schedule")
"""Each kind of cache has one of them."""

OTHERS = ("clone", "of", "cache", "extract")
"""What gives another cache."""


class NativeCache:
    """The attributes and methods of a cache."""

    def __init__(self, native: Any) -> None:
        self.native = native

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.native, name)
        if not callable(member):
            return wrap_native(member) if name in OTHERS else member

        def call(*arguments: Any) -> Any:
            result = member(*map(unwrap_native, arguments))
            return wrap_native(result) if name in OTHERS else result

        setattr(self, name, call)  # looked up once only
        return call


def wrap_native(cache: Any) -> Any:
    """Returns the cache itself if it has methods, and they are functions of Python."""
    kind: Any = type(cache)
    is_cache = any(hasattr(cache, name) for name in METHODS)
    return NativeCache(cache) if is_native(kind) or not is_cache else cache


@cache
def is_native(kind: Any) -> bool:
    """Says whether a method of this class is not a function of Python."""
    methods = (getattr_static(kind, name, None) for name in METHODS)
    return any(method and not isinstance(method, FunctionType) for method in methods)


def unwrap_native(value: Any) -> Any:
    return value.native if isinstance(value, NativeCache) else value


def open_native(open_cache: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that opens the same caches, wrapped where they are native."""

    @wraps(open_cache)
    def open_wrapped(config: Mapping[str, Any]) -> Any:
        if config.get("caches"):
            config = {**config, "caches": [*map(unwrap_native, config["caches"])]}
        return wrap_native(open_cache(config))

    return open_wrapped
