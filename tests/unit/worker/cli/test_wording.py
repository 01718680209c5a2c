"""Every word that a run can be described with has its sentence."""

from __future__ import annotations

import pytest

from codec.vocabulary import BlockedReason, DeclaredClass, QuestionKind, RunStatus, TerminationReason, TrustZone
from codec.wire import ShownBlocked
from worker.cli.wording import ENDED, STATUS_STYLE, WAITS_FOR, blocked_remedy, blocked_sentence


@pytest.mark.parametrize("reason", BlockedReason)
def test_what_blocks_a_run_is_told_with_what_helps(reason: BlockedReason) -> None:
    """One sentence each; the remedy can be typed."""
    blocked = ShownBlocked(
        reason=reason,
        source='snippet "x"',
        data_class=DeclaredClass.SECRET_ADJACENT,
        zone=TrustZone.EXTERNAL_EU,
        ceiling=DeclaredClass.INTERNAL_CONFIGURATION,
        provider="p",
        configuration="c",
    )
    assert blocked_sentence(blocked)
    remedy = blocked_remedy(blocked, "the-uuid")
    assert "{" not in remedy
    assert reason in (BlockedReason.KEY, BlockedReason.VERSION) or "the-uuid" in remedy


def test_every_status_end_and_question_has_words() -> None:
    """A new member of an enum needs its words here."""
    assert set(RunStatus) == set(STATUS_STYLE)
    assert set(QuestionKind) == set(WAITS_FOR)
    assert set(TerminationReason) - {TerminationReason.COMPLETED, TerminationReason.CANCELLED} == set(ENDED)
