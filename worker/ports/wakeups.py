"""The wake-up: what a message in Redis looks like, for those who send one and those who take it.

A wake-up carries one run's uuid and nothing else; Redis may lose, repeat or forge it without harm, because the
row is the run. The sender is an adapter and the taker an entry point that never import each other, so what both
must agree on lives here, as data and pure functions. Never put content into a message.
"""

import json
import re
from typing import Final

__all__ = [
    "ACTOR_NAME",
    "MESSAGES_KEY",
    "MESSAGE_LIMIT_BYTES",
    "NAMESPACE",
    "QUEUE_KEY",
    "QUEUE_NAME",
    "REDIS_ID_OPTION",
    "SET_ASIDE_KEY",
    "SET_ASIDE_LIMIT",
    "encode_wakeup",
    "is_run_uuid",
]

QUEUE_NAME: Final = "regate"
ACTOR_NAME: Final = "wake"

#: dramatiq's default prefix of keys. Other applications in the same Redis use it too; our queue's name sets us apart.
NAMESPACE: Final = "dramatiq"

#: A list of the ids of the waiting messages, oldest first.
QUEUE_KEY: Final = f"{NAMESPACE}:{QUEUE_NAME}"

#: A hash from such an id to the message's bytes.
MESSAGES_KEY: Final = f"{QUEUE_KEY}.msgs"

#: The option under which dramatiq keeps, inside a message, its id in the two keys above.
REDIS_ID_OPTION: Final = "redis_message_id"

#: A list of messages nobody could read, newest first, for a person to look at. Nothing of ours reads it.
SET_ASIDE_KEY: Final = "regate:set-aside"

#: Messages. With `MESSAGE_LIMIT_BYTES` it bounds what garbage can occupy to 1 MiB.
SET_ASIDE_LIMIT: Final = 1000

#: Bytes. A wake-up has about 270; four times that leaves room for dramatiq to add an option.
MESSAGE_LIMIT_BYTES: Final = 1024

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)


def is_run_uuid(text: str) -> bool:
    """Tell whether `text` is a uuid in its canonical form: 36 characters, lower case, hyphenated."""
    return _UUID.fullmatch(text) is not None


def encode_wakeup(run: str, *, message_id: str, redis_id: str, timestamp_ms: int) -> bytes:
    """Build the message that wakes `run`, byte for byte as dramatiq's own encoder does.

    Units: `timestamp_ms` counts from the Unix epoch; nobody of ours reads it.
    Errors: ValueError, without the text, when `run` is not a canonical uuid.
    """
    if not is_run_uuid(run):
        raise ValueError("a wake-up carries the canonical uuid of a run")
    fields = {
        "queue_name": QUEUE_NAME,
        "actor_name": ACTOR_NAME,
        "args": [run],
        "kwargs": {},
        "options": {REDIS_ID_OPTION: redis_id},
        "message_id": message_id,
        "message_timestamp": timestamp_ms,
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")
