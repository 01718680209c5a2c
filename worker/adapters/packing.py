"""Packing: how documents are made small before they are sealed.

    form 1   as it is
    form 2   one zstd frame; written by earlier builds, still read
    form 3   one zstd frame against the first dictionary

Most entries are small, and most of a small entry is the names of its fields. The dictionary holds these, so an entry of
430 bytes takes 170 instead of 320, and a state of 8 KB with the built-in tools 1.1 KB instead of 2.1.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["MOST_BYTES", "pack", "unpack"]

MOST_BYTES: Final = 64 * 1024 * 1024
"""What may be packed, and what a packed text may unfold to. A state has at most some MiB; more is a fault or a bomb."""
_PLAIN: Final = 1
_ZSTD: Final = 2
_FIRST: Final = 3
_LEVEL: Final = 1
"""Level 3 saves another 7 % of an entry and takes three times as long."""
_FROM_BYTES: Final = 64
"""Below, there is little to save but much to look up."""


def pack(data: bytes) -> tuple[int, bytes]:
    """Give the form and the packed bytes, whichever are fewer."""
    if len(data) >= _FROM_BYTES:
        packed = _PACKERS.first.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
        if len(packed) < len(data):
            return _FIRST, packed
    return _PLAIN, data


def unpack(form: int, data: bytes) -> bytes | None:
    """Unfold what `pack` gave; None for an unknown form and for what is no frame, is cut, or is followed by more."""
    if form == _PLAIN:
        return data
    if form not in (_ZSTD, _FIRST):
        return None
    unpacker = zstd.ZstdDecompressor() if form == _ZSTD else zstd.ZstdDecompressor(zstd_dict=_DICTIONARY)
    try:
        unpacked = unpacker.decompress(data, max_length=MOST_BYTES + 1)
    except zstd.ZstdError:
        return None
    whole = unpacker.eof and not unpacker.unused_data and len(unpacked) <= MOST_BYTES
    return unpacked if whole else None


FIRST_DICTIONARY: Final = (
    rb'{"version":1,"run":"","phase":"done","seed":"","owner":{"kind":"local","name":"local","uid":null,"admin"'
    rb':true,"groups":[],"grants":[],"scopes":[]},"configuration":1,"allowed_tool_names":null,"options":{},"for'
    rb'ced_snippet_uids":[1],"forced_skill_uids":[],"transcript":[{"role":"system","content":""},{"role":"syste'
    rb'm","content":""},{"role":"user","content":""},{"role":"assistant","content":"","tool_calls":[{"id":"call'
    rb'_","name":"","arguments":"{\""}]},{"role":"tool","content":"","tool_call_id":"call_"},{"role":"assistant'
    rb'","tool_calls":[{"id":"call_","name":"","arguments":"{\""}]},{"role":"tool","content":"","tool_call_id":'
    rb'"call_"},{"role":"assistant","content":""}],"lead":2,"carried":[{"kind":"system_prompt","uid":1,"name":"'
    rb'system prompt of \"\"","origin":"configuration","seen":null,"text_hash":""},{"kind":"snippet","uid":1,"n'
    rb'ame":"snippet \"\"","origin":"forced","seen":"secret_adjacent","text_hash":""}],"dropped":[],"calls":[],'
    rb'"counters":{"rounds":3,"input_tokens":0,"output_tokens":0,"remote_calls":0,"elapsed_ms":60,"turns":2,"qu'
    rb'estions":1,"barren":0,"overdue":0},"limits":{"rounds":10,"tokens":0,"duration_ms":0,"remote_calls":20,"r'
    rb'etries":3},"send":null,"hop":0,"retries":0,"synthesis":false,"calibration":1.15,"question":null,"blocked'
    rb'":null,"reason":"completed","high_water":"editor_content","noted":["gate:|permitted|snippet \"\"|secret_'
    rb'adjacent|local||"],{"version":1,"event":{"type":"run_started","nonce":"","elapsed_ms":19,"policy":2,"run'
    rb'":"","request":{"configuration":1,"messages":[{"role":"user","content":""}],"allowed_tool_names":null,"o'
    rb'ptions":{},"max_iterations":null,"augmentation":{"forced_snippet_uids":[1],"forced_skill_uids":[],"syste'
    rb'm_prompt_override":null,"dry_run":false},"actor":{"kind":"local","name":"local","uid":null,"admin":true,'
    rb'"groups":[],"grants":[],"scopes":[]},"planned_cost":null,"idempotency_key":null,"caller":null,"tags":{}}'
    rb',"texts":{"sources":[{"kind":"system_prompt","uid":1,"label":"","text":"","text_hash":""},{"kind":"snipp'
    rb'et","uid":1,"label":"","text":"","text_hash":""}]},"facts":{"enforcement":"enforce","owner":{"kind":"loc'
    rb'al","name":"local","enabled":true,"admin":true},"configuration":{"uid":1,"identifier":"","route":{"ident'
    rb'ifier":"","model":"m","provider":1,"context_length":128000},"prompt_hash":""},"providers":[{"uid":1,"ide'
    rb'ntifier":"","kind":"openai","base_url":"http","api_key_env":"REGATE_KEY_","zone":"local","script":""}],"'
    rb'sources":[{"kind":"snippet","uid":1,"identifier":"","active":true,"text_hash":"","declared":"secret_adja'
    rb'cent"}],"tools":[{"name":"http_get","description":"Fetch a text over HTTP from a permitted host. Redirec'
    rb'ts are not followed.","parameters":"{\"type\":\"object\",\"properties\":{\"url\":{\"type\":\"string\",\"'
    rb"pattern\":\"^https?://\",\"description\":\"Absolute http or https URL.\"}},\"required\":[\"url\"],\"addi"
    rb'tionalProperties\":false}","effect":"read_only","data_class":"editor_content","group":"web","egress":"ho'
    rb'st","timeout_ms":60000},{"name":"post_json","description":"Send a JSON object by HTTP POST to a permitte'
    rb'd host. Redirects are not followed.","parameters":"{\"type\":\"object\",\"properties\":{\"url\":{\"type'
    rb"\":\"string\",\"pattern\":\"^https?://\",\"description\":\"Absolute http or https URL.\"},\"body\":{\"ty"
    rb"pe\":\"object\",\"description\":\"The JSON object to send.\"}},\"required\":[\"url\",\"body\"],\"additio"
    rb'nalProperties\":false}","effect":"non_idempotent_write","data_class":"editor_content","group":"web","pre'
    rb'view":true,"egress":"host","timeout_ms":60000},{"name":"ask_person","description":"Ask a person a questi'
    rb'on and wait for the answer.","parameters":"{\"type\":\"object\",\"properties\":{\"question\":{\"type\":'
    rb'\"string\",\"minLength\":1,\"description\":\"What you want to know.\"}},\"required\":[\"question\"]}","e'
    rb'ffect":"read_only","data_class":"editor_content","group":"general","input_schema":"{\"type\":\"object\",'
    rb"\"properties\":{\"answer\":{\"type\":\"string\",\"minLength\":1,\"title\":\"Answer\"}},\"required\":[\"a"
    rb'nswer\"],\"additionalProperties\":false}","timeout_ms":60000},{"role":"system","content":""},{"role":"us'
    rb'er","content":""},{"role":"assistant","content":"","tool_calls":[{"id":"call_","name":"","arguments":"{'
    rb'\"{"version":1,"event":{"type":"input_given","nonce":"","elapsed_ms":,"policy":,"question":"","decider":'
    rb'{"kind":"user","name":"","uid":,"enabled":true,"groups":[""]},"data":"{\""type":"model_failed","type":"t'
    rb'ool_failed","failure":"connection","not_before_ms":"type":"policy_replaced","facts":{"enforcement":"obse'
    rb'rve","type":"cancel_requested","by":"","type":"expired","type":"outcome_given","word":"run","happened":"'
    rb'"zone":"private_hosted","ceiling":"system_diagnostics","zone":"external_eu","ceiling":"internal_configur'
    rb'ation","zone":"external_global","ceiling":"editor_content","data_class":"source_code","data_class":"publ'
    rb'ic_content","verdict":"refused","mode":"enforce","verdict":"observed","fresh":true,"word":"context_block'
    rb'ed","word":"max_iterations","word":"outcome"{"version":1,"event":{"type":"previewed","nonce":"","elapsed'
    rb'_ms":,"policy":,"call":"call_","lines":["",""]},"commands":[{"kind":"suspend","id":"","word":"approval"}'
    rb']}{"version":1,"event":{"type":"run_resumed","nonce":"","elapsed_ms":,"policy":,"cause":"answer"},"comma'
    rb'nds":[{"kind":"suspend","id":"","word":"approval"}],"decisions":[{"verdict":"permitted","configuration":'
    rb'"","policy":,"data_class":"secret_adjacent","source":"snippet \"\"","zone":"local","provider":"","ceilin'
    rb'g":"secret_adjacent","high_water":"public_content"}]}{"version":1,"event":{"type":"decision_given","nonc'
    rb'e":"","elapsed_ms":,"policy":,"question":"","decider":{"kind":"local","name":"local","enabled":true,"adm'
    rb'in":true},"verdicts":{"call_":{"approve":true}}},"commands":[{"kind":"call_tool","id":"call_","key":"","'
    rb'word":"non_idempotent_write"}]}{"version":1,"event":{"type":"model_replied","nonce":"","elapsed_ms":,"po'
    rb'licy":,"send":"","reply":{"text":"","usage":{},"model":"","note":""}},"commands":[{"kind":"finish","word'
    rb'":"completed"}]}{"version":1,"event":{"type":"tool_returned","nonce":"","elapsed_ms":,"policy":,"call":"'
    rb'call_","result":""},"commands":[{"kind":"call_model","id":"","target":1,"model":"","length":,"hash":"","'
    rb'key":""}],"decisions":[{"verdict":"permitted","configuration":"","policy":,"data_class":"secret_adjacent'
    rb'","source":"snippet \"\"","zone":"local","provider":"","ceiling":"secret_adjacent","high_water":"public_'
    rb'content"}]}{"version":1,"event":{"type":"model_replied","nonce":"","elapsed_ms":,"policy":,"send":"","re'
    rb'ply":{"text":"","calls":[{"id":"call_","name":"","arguments":"{\""}],"usage":{},"finish":"tool_calls","m'
    rb'odel":"","note":""}},"commands":[{"kind":"call_tool","id":"call_","key":"","word":"read_only"}]}'
)
"""Fields and words of our documents, the most frequent last. Never to be changed: what is stored needs it as it is."""

_DICTIONARY: Final = zstd.ZstdDict(FIRST_DICTIONARY, is_raw=True).as_digested_dict


class _Packers(threading.local):
    """A compressor of each thread: making one costs more than packing an entry. Each of its frames stands alone."""

    def __init__(self) -> None:
        self.first = zstd.ZstdCompressor(level=_LEVEL, zstd_dict=_DICTIONARY)


_PACKERS: Final = _Packers()
