"""What kind `openai` does without a server; the rest is in the integration tier."""

import subprocess
import sys
from email.utils import formatdate
from pathlib import Path

import pytest

from codec.commands import Permit, Target
from codec.decisions import Decision
from codec.facts import ToolFacts
from codec.request import ModelOptions
from codec.vocabulary import DeclaredClass, FailureClass, ToolEffect, TrustZone, Verdict
from worker.adapters.models.openai import OpenAIModels, sdk_problem
from worker.adapters.models.registry import MAX_RETRY_AFTER_MS, ModelRegistry, retry_after_ms
from worker.ports.models import ModelRequest, Models, ModelSendError

NOW = 1_800_000_000.0


def permit(base_url: str | None, key_variable: str | None) -> Permit:
    target = Target(
        provider=1,
        identifier="house",
        kind="openai",
        configuration="support",
        model="some-model",
        zone=TrustZone.LOCAL,
        version=3,
        base_url=base_url,
        key_variable=key_variable,
    )
    return Permit(decision=Decision(verdict=Verdict.PERMITTED, configuration="support", policy=3), target=target)


def request(*tools: ToolFacts) -> ModelRequest:
    return ModelRequest(run="r", round=1, hop=0, key="k", messages=(), tools=tools, options=ModelOptions())


async def failure(models: Models, permit: Permit, request: ModelRequest) -> FailureClass:
    with pytest.raises(ModelSendError) as caught:
        await models.send(permit, request, None)
    assert caught.value.__context__ is None
    return caught.value.failure


async def test_a_missing_key_is_a_matter_of_configuration() -> None:
    models = ModelRegistry({"openai": OpenAIModels({})})

    assert FailureClass.CONFIGURATION is await failure(models, permit("http://127.0.0.1:1", "REGATE_KEY_A"), request())


async def test_a_missing_base_url_is_a_matter_of_configuration() -> None:
    assert FailureClass.CONFIGURATION is await failure(OpenAIModels({}), permit(None, None), request())


async def test_a_tool_without_a_schema_is_a_matter_of_configuration() -> None:
    tool = ToolFacts(
        name="look",
        description="",
        parameters="none",
        effect=ToolEffect.READ_ONLY,
        data_class=DeclaredClass.PUBLIC_CONTENT,
        group="g",
    )

    assert FailureClass.CONFIGURATION is await failure(
        OpenAIModels({}), permit("http://127.0.0.1:1", None), request(tool)
    )


async def test_without_the_sdk_a_send_is_a_matter_of_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "worker.adapters.models.openai_client", raising=False)

    assert "regate[openai]" in (sdk_problem() or "")
    assert FailureClass.CONFIGURATION is await failure(OpenAIModels({}), permit("http://127.0.0.1:1", None), request())


async def test_certificates_that_cannot_be_read_are_a_matter_of_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))

    assert "SSL_CERT_FILE" in (sdk_problem() or "")
    assert FailureClass.CONFIGURATION is await failure(OpenAIModels({}), permit("http://127.0.0.1:1", None), request())


def test_the_sdk_is_imported_when_it_is_needed_and_starts_no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_LOG", "debug")
    program = """
import logging, sys
from worker.adapters.models.openai import sdk_problem
assert "openai" not in sys.modules and "httpx2" not in sys.modules
assert sdk_problem() is None
assert "openai" in sys.modules and logging.root.handlers == []
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        (None, 0),
        ("", 0),
        ("0", 0),
        (" 7 ", 7_000),
        ("1.5", 1_500),
        ("1e3", 0),
        ("-1", 0),
        ("٣", 0),
        ("nan", 0),
        ("inf", 0),
        ("9" * 400, MAX_RETRY_AFTER_MS),
        (formatdate(NOW + 60, usegmt=True), 60_000),
        (formatdate(NOW - 60, usegmt=True), 0),
        (formatdate(NOW + 10**7, usegmt=True), MAX_RETRY_AFTER_MS),
        ("Fri Jan 15 08:01:00 2027", 60_000),
        ("Fri, 15 Jan 2027 09:01:00 +0100", 60_000),
        ("Fri, 99 Jan 2027 09:01:00 GMT", 0),
        ("Fri, 15 Jan 99999 09:01:00 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, wait: int) -> None:
    assert wait == retry_after_ms(value, NOW)
