"""The files of the demonstration: a catalogue, and the scripts of two providers that stand in for models.

With a real model only the first of the two is replaced: nobody should ever ask the second one.
"""

from __future__ import annotations

import json
from typing import Final

from worker.demo.model import KEY_VARIABLE, RealModel

__all__ = ["CLOUD_SCRIPT", "HOUSE_SCRIPT", "catalogue"]

_CATALOGUE: Final = """
[[provider]]
identifier = "house"
trust_zone = "local"
HOUSE

[[provider]]
identifier = "cloud"
kind = "scripted"
script = "cloud.toml"
trust_zone = "external_global"

[[configuration]]
identifier = "on-call"
provider = "house"
model = "MODEL"
system_prompt = "PROMPT"

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


_PROMPT: Final = (
    "You help the people who are on call. To open a ticket, call the tool post_json exactly once, with the url URL "
    "and a body with a title. When it has returned, say in one sentence that the ticket is open."
)


def catalogue(model: RealModel | None, url: str) -> str:
    """Give the catalogue file; `url` takes tickets."""
    if model is None:
        house, name, prompt = (
            'kind = "scripted"\nscript = "house.toml"',
            "a-model",
            "You help the people who are on call.",
        )
    else:
        house = f'kind = "openai"\nbase_url = {json.dumps(model.base_url)}'
        house += f'\napi_key_env = "{KEY_VARIABLE}"' if model.key else ""
        name, prompt = model.model, _PROMPT
    filled = _CATALOGUE.lstrip().replace("HOUSE", house).replace('"MODEL"', json.dumps(name))
    return filled.replace("PROMPT", prompt).replace("URL", url)
