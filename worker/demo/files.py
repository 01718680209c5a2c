"""The files of the demonstration: a catalogue, and the scripts of two providers that stand in for models."""

from __future__ import annotations

from typing import Final

__all__ = ["CLOUD_SCRIPT", "HOUSE_SCRIPT", "catalogue"]

_CATALOGUE: Final = """
[[provider]]
identifier = "house"
kind = "scripted"
script = "house.toml"
trust_zone = "local"

[[provider]]
identifier = "cloud"
kind = "scripted"
script = "cloud.toml"
trust_zone = "external_global"

[[configuration]]
identifier = "on-call"
provider = "house"
model = "a-model"
system_prompt = "You help the people who are on call."

[[snippet]]
identifier = "incident-report"
label = "Incident report"
text = "Database db-7 answered with another customer's rows. The token of its replica was in the log."
data_class = "secret_adjacent"

[[egress]]
host = "127.0.0.1"
trust_zone = "local"
"""

HOUSE_SCRIPT: Final = """
record = "house.jsonl"

[[reply]]
text = "I will open a ticket."
tool_calls = [{ id = "c1", name = "post_json", arguments = { url = "URL", body = { title = "db-7", run = "{run}" } } }]
usage = { input_tokens = 61, output_tokens = 24 }

[[reply]]
text = "Ticket 1 is open."
usage = { input_tokens = 98, output_tokens = 6 }
"""

CLOUD_SCRIPT: Final = """
record = "cloud.jsonl"

[[reply]]
text = "Nobody should ever read this."
"""


def catalogue() -> str:
    """Give the catalogue file."""
    return _CATALOGUE.lstrip()
