"""docs/settings.md is what operators configure by: it must name every setting with the default the code has."""

import os
from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import BaseSettings

from scripts import settings_doc
from tidegate_kernel.settings import read_settings

_FILE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_settings_document_is_current() -> None:
    """A default that changed in the code and not in the document costs an operator a night."""
    assert _FILE.read_text(encoding="utf-8") == settings_doc.settings_document(), "run python -m scripts.settings_doc"


def test_setting_without_a_sentence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a new setting would stand in the table with nothing said about it."""

    class Grown(BaseSettings):
        undescribed: int = Field(default=1)

    monkeypatch.setattr(settings_doc, "Settings", Grown)
    with pytest.raises(KeyError, match="undescribed"):
        settings_doc.settings_document()


def test_every_default_shown_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document tells durations and flags as an environment takes them: what it shows must be readable."""
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    untouched = read_settings()
    shown = 0
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" `") for cell in line.split("|")]
        if line.startswith("| `TIDEGATE_") and len(cells) == 6 and cells[3] != "none":
            monkeypatch.setenv(cells[1], cells[3])
            shown += 1
    assert shown > 20
    assert read_settings() == untouched
