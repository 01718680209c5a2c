"""Pages that are written by a script are what the script writes."""

from __future__ import annotations

from codec.vocabulary import Phase
from scripts.draw_states import MEANING, PAGE, cell, document, main, told
from worker.core.machine import EVENTS


def test_the_page_of_states_is_up_to_date() -> None:
    """Run `python -m scripts.draw_states` after a change of the table or of a docstring."""
    assert document() == PAGE.read_text(encoding="utf-8")
    assert 0 == main(["--check"])


def test_each_transition_says_what_it_does() -> None:
    """One sentence that ends, for every cell; and every phase has a meaning."""
    found = {told(t) for phase in Phase for event in EVENTS if (t := cell(phase, event)) is not None}

    assert set(Phase) == set(MEANING)
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in found)
