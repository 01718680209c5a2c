"""What the gate would decide, for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from codec.vocabulary import Verdict
from codec.wire import DryRun, Explained
from worker.cli.printing import block, listing, print_people, section, text

__all__ = ["explained_page", "print_dry_run", "print_explained"]

_STYLE = {Verdict.PERMITTED: "bold green", Verdict.OBSERVED: "bold yellow", Verdict.REFUSED: "bold red"}
_TOLD = {
    Verdict.PERMITTED: "Permitted",
    Verdict.OBSERVED: "Permitted, because the policy only observes; enforced, it would be refused",
    Verdict.REFUSED: "Refused",
}


def print_explained(found: Explained) -> None:
    """Print a verdict and what it stands on."""
    print_people(explained_page(found))


def explained_page(found: Explained) -> RenderableType:
    """Lay out a verdict: the sentence first, then the sources, then what would help."""
    parts: list[RenderableType] = [
        text(_TOLD[found.verdict], _STYLE[found.verdict]),
        block(
            (
                (
                    "strictest",
                    f"{found.source}: {found.data_class}" if found.data_class else "no class is declared",
                ),
                ("zone", f"{found.zone}, set by {found.provider}" if found.zone else None),
                ("ceiling", found.ceiling and found.ceiling.value),
                ("policy", found.mode.value),
            )
        ),
    ]
    if found.sources:
        rows = (
            (s.name, s.data_class or "declares nothing", s.origin.value, "" if s.counts else "left out")
            for s in found.sources
        )
        table = listing({"source": "", "class": "fixed", "origin": "fixed", "": "fixed"}, rows)
        parts.append(section("Sources, in the order of composition", Padding(table, (0, 0, 0, 2))))
    if found.fix:
        fixes = Text("\n").join(text(f"· {fix}") for fix in found.fix)
        parts.append(section("Any of these would help", Padding(fixes, (0, 0, 0, 2))))
    return Group(*parts)


def print_dry_run(found: DryRun) -> None:
    """Print what would be sent first. Nothing was sent."""
    parts: list[RenderableType] = [text("Dry run: nothing was sent, nothing is stored.", "bold")]
    for message in found.messages:
        body = text(message.get("content") or "")
        parts.append(section(str(message.get("role", "")), Padding(body, (0, 0, 0, 2)), style="bold cyan"))
    parts.append(section("Tools", Padding(text(", ".join(found.tools) or "none"), (0, 0, 0, 2))))
    print_people(*parts, Text(""), explained_page(found.explain))
