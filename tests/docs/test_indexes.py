"""The pages that list pages list all of them."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
INDEXES = [REPOSITORY / "docs" / "README.md", REPOSITORY / "ops" / "decisions" / "README.md"]


@pytest.mark.parametrize("index", INDEXES, ids=["docs", "decisions"])
def test_every_page_of_the_folder_is_listed(index):
    pages = {path.name for path in index.parent.glob("*.md")} - {index.name}

    assert [page for page in sorted(pages) if f"]({page})" not in index.read_text()] == []


@pytest.mark.parametrize("index", INDEXES, ids=["docs", "decisions"])
def test_every_link_leads_somewhere(index):
    links = re.findall(r"\]\((?!http)([^)#]+)", index.read_text())

    assert [link for link in links if not (index.parent / link).exists()] == []
