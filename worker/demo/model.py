"""The model that the demonstration asks: a script of ours, or one of yours behind a compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from worker.demo.telling import StepError

__all__ = ["KEY_VARIABLE", "RealModel"]

KEY_VARIABLE: Final = "REGATE_KEY_DEMO"
_BASE_URL: Final = "REGATE_DEMO_BASE_URL"
_MODEL: Final = "REGATE_DEMO_MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """A real model. `key` is empty when its server asks for none."""

    base_url: str
    model: str
    key: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Read the three variables; None when no base URL is set. Errors: `StepError`."""
        base_url, model = environment.get(_BASE_URL, ""), environment.get(_MODEL, "")
        if not base_url:
            return None
        if not model:
            raise StepError(f"{_BASE_URL} is set, so {_MODEL} must name a model of that server")
        return cls(base_url=base_url, model=model, key=environment.get(KEY_VARIABLE, ""))
