from collections.abc import Callable

import pytest

from codec.commands import Permit, Target
from codec.decisions import Decision
from codec.request import ModelOptions
from codec.transcript import ModelReply
from codec.vocabulary import FailureClass, TrustZone, Verdict
from worker.adapters.models.registry import ModelRegistry, failure_of_status
from worker.ports.models import ModelRequest, ModelSendError

REQUEST = ModelRequest(run="r", round=1, hop=0, key="k", messages=(), tools=(), options=ModelOptions())


class Echo:
    """Answers with the model that the permit names."""

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        return ModelReply(text=permit.target.model)


def permit(kind: str) -> Permit:
    target = Target(
        provider=1, identifier="p", kind=kind, configuration="c", model="m", zone=TrustZone.LOCAL, version=3
    )
    return Permit(decision=Decision(verdict=Verdict.PERMITTED, configuration="c", policy=3), target=target)


async def test_the_permits_kind_finds_the_sender() -> None:
    assert "m" == (await ModelRegistry({"echo": Echo()}).send(permit("echo"), REQUEST, None)).text


async def test_an_unknown_kind_is_a_matter_of_configuration() -> None:
    with pytest.raises(ModelSendError) as caught:
        await ModelRegistry({"echo": Echo()}).send(permit("other"), REQUEST, None)

    assert FailureClass.CONFIGURATION is caught.value.failure


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (200, None),
        (204, None),
        (302, FailureClass.CONFIGURATION),
        (400, FailureClass.CLIENT_ERROR),
        (401, FailureClass.AUTH),
        (403, FailureClass.AUTH),
        (404, FailureClass.CLIENT_ERROR),
        (408, FailureClass.CLIENT_ERROR),
        (422, FailureClass.CLIENT_ERROR),
        (429, FailureClass.RATE_LIMIT),
        (500, FailureClass.SERVER_ERROR),
        (503, FailureClass.SERVER_ERROR),
        (599, FailureClass.SERVER_ERROR),
        (0, FailureClass.INVALID_REPLY),
        (101, FailureClass.INVALID_REPLY),
        (600, FailureClass.INVALID_REPLY),
    ],
)
def test_each_status_has_its_class(status: int, failure: FailureClass | None) -> None:
    assert failure is failure_of_status(status)
