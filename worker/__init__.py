"""Durable, governed runs of LLM agents.

The public names are loaded on first use, so that importing the pure core loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from codec import AgentRunRequest, Message, ModelOptions, RunAugmentation
    from worker.bootstrap import open_runtime

__all__ = ["AgentRunRequest", "Message", "ModelOptions", "RunAugmentation", "open_runtime"]

_HOMES: Final = {
    "AgentRunRequest": "codec",
    "Message": "codec",
    "ModelOptions": "codec",
    "RunAugmentation": "codec",
    "open_runtime": "worker.bootstrap",
}


def __getattr__(name: str) -> Any:
    """Load a public name. Errors: AttributeError for any other."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'worker' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
