"""Durable, governed runs of LLM agents.

The public names are loaded on first use, so that importing the pure core loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from codec import LOCAL, Actor, AgentRunRequest, Message, ModelOptions, RunAugmentation
    from codec.vocabulary import Role
    from worker.blocking import BlockingRuntime, open_blocking_runtime
    from worker.bootstrap import StartError, open_runtime
    from worker.ports.runs import StoreError
    from worker.runtime.answers import Verdicts
    from worker.runtime.errors import (
        ConflictError,
        ForbiddenError,
        InvalidError,
        NotFoundError,
        RuntimeFault,
        UnavailableError,
    )
    from worker.runtime.handle import Handle
    from worker.runtime.service import Runtime
    from worker.settings import Settings, SettingsError

__all__ = [
    "LOCAL",
    "Actor",
    "AgentRunRequest",
    "BlockingRuntime",
    "ConflictError",
    "ForbiddenError",
    "Handle",
    "InvalidError",
    "Message",
    "ModelOptions",
    "NotFoundError",
    "Role",
    "RunAugmentation",
    "Runtime",
    "RuntimeFault",
    "Settings",
    "SettingsError",
    "StartError",
    "StoreError",
    "UnavailableError",
    "Verdicts",
    "open_blocking_runtime",
    "open_runtime",
]

_HOMES: Final = {
    "LOCAL": "codec",
    "Actor": "codec",
    "AgentRunRequest": "codec",
    "BlockingRuntime": "worker.blocking",
    "ConflictError": "worker.runtime.errors",
    "ForbiddenError": "worker.runtime.errors",
    "Handle": "worker.runtime.handle",
    "InvalidError": "worker.runtime.errors",
    "Message": "codec",
    "ModelOptions": "codec",
    "NotFoundError": "worker.runtime.errors",
    "Role": "codec.vocabulary",
    "RunAugmentation": "codec",
    "Runtime": "worker.runtime.service",
    "RuntimeFault": "worker.runtime.errors",
    "Settings": "worker.settings",
    "SettingsError": "worker.settings",
    "StartError": "worker.bootstrap",
    "StoreError": "worker.ports.runs",
    "UnavailableError": "worker.runtime.errors",
    "Verdicts": "worker.runtime.answers",
    "open_blocking_runtime": "worker.blocking",
    "open_runtime": "worker.bootstrap",
}


def __getattr__(name: str) -> Any:
    """Load a public name. Errors: AttributeError for any other."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'worker' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
