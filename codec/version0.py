"""Version 0 of the state: documents from before forced lists, carried sources, input keys and previews.

Lenient where the first writers were: a missing or broken forced list reads as none, numbers may be digits in text. The
run resumes with what can be read and is never refused for what it lacks; the live configuration's own sources count.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["lenient_uids", "upgrade_state"]

_COUNTERS: Final = (
    "rounds",
    "input_tokens",
    "output_tokens",
    "remote_calls",
    "elapsed_ms",
    "turns",
    "questions",
    "barren",
    "overdue",
)

_CALL: Final = {
    "approved": None,
    "supplied": None,
    "executed": None,
    "result": None,
    "error": False,
    "decided": False,
    "denied": False,
    "decided_by": None,
    "reason": None,
    "preview": None,
}
"""What the calls of the first documents did not have."""


def upgrade_state(fields: dict[str, Any]) -> dict[str, Any]:
    """Turn the fields of a version 0 state into those of version 1. Total: leaves faults for the strict reader."""
    state = dict(fields)
    state["forced_snippet_uids"] = lenient_uids(state.get("forced_snippet_uids"))
    state["forced_skill_uids"] = lenient_uids(state.get("forced_skill_uids"))
    state.setdefault("carried", [])
    state.setdefault("dropped", [])
    state["counters"] = _counters(state.get("counters"))
    state["allowed_tool_names"] = _names(state.get("allowed_tool_names"))
    calls = state.get("calls")
    state["calls"] = [{**_CALL, **c} for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []
    if isinstance(state.get("question"), dict):
        state["question"] = _question(state["question"], state)
    return state


def lenient_uids(value: object) -> list[int]:
    """Read a forced list as the first version wrote it: positive integers, or digits in text; the rest is left out.

    Example: `[41, 0, -3, "nine", "12", null, ["x"]]` gives `[41, 12]`; anything but a list gives none.
    """
    if not isinstance(value, list):
        return []
    return [uid for uid in map(_uid, value) if 0 < uid < 2**63]


def _uid(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _counters(value: object) -> dict[str, int]:
    found = value if isinstance(value, dict) else {}
    return {name: max(0, _uid(found.get(name))) for name in _COUNTERS}


def _names(value: object) -> list[str] | None:
    if not isinstance(value, list):
        return None
    return [name for name in value if isinstance(name, str)]


def _question(question: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    asked = question.get("input")
    usable = isinstance(asked, dict) and isinstance(asked.get("tool"), str) and isinstance(asked.get("schema"), str)
    return {**question, "input": asked if usable else _declared(question, state)}


def _declared(question: dict[str, Any], state: dict[str, Any]) -> dict[str, str] | None:
    """Give what the asked tool declares in the state's own facts, so that somebody can still answer."""
    asked, facts = question.get("calls"), state.get("facts")
    tools = facts.get("tools") if isinstance(facts, dict) else None
    if question.get("kind") != "input" or not isinstance(asked, list) or not isinstance(tools, list):
        return None
    names = [call.get("name") for call in state["calls"] if call.get("id") in asked]
    found = [t for t in tools if isinstance(t, dict) and t.get("name") in names[:1]]
    schema = found[0].get("input_schema") if found else None
    return {"tool": found[0]["name"], "schema": schema} if isinstance(schema, str) else None
