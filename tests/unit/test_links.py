"""Links between the documents lead somewhere: to a file that is there, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").glob("*.md")])


def anchor(heading: str) -> str:
    """As code hosts make it: lower case, words joined by hyphens, punctuation gone."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [link for link in found if not link.startswith("http")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


def test_there_are_links() -> None:
    assert sum(len(links(page)) for page in PAGES) > 50
