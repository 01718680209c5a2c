"""Remembering what pure functions of large immutable values gave, by the identity of those values.

Facts, carried sources and texts are the same objects from step to step. To compare them costs more than most functions
of them do; to see that they are the same costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

__all__ = ["remembered"]

P = ParamSpec("P")
T = TypeVar("T")

_MOST: Final = 2048
"""Results kept by each function: a process drives about a thousand runs, each with a few values of its own."""


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a pure function of immutable arguments; forgets everything when too much is kept.

    Law: the same result as without. The arguments are kept beside it, so no other object can take their identity.
    Named arguments are not looked up.
    """
    kept: dict[tuple[int, ...], tuple[tuple[object, ...], T]] = {}

    @wraps(function)
    def remembering(*args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs:
            return function(*args, **kwargs)
        place = tuple(map(id, args))
        found = kept.get(place)
        if found is not None:
            return found[1]
        result = function(*args, **kwargs)
        if len(kept) >= _MOST:
            kept.clear()
        kept[place] = (args, result)
        return result

    return remembering
