"""The pictures of the documentation show the pages of today."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
if not (TOOLS / "pictures.py").is_file():
    pytest.skip("tools/ is missing: run the tests in a clone", allow_module_level=True)
sys.path.insert(0, str(TOOLS))

import pictures  # noqa: E402 - found through the path above


def test_the_pictures_were_built_from_the_pages_of_today() -> None:
    old = [picture.name for picture in pictures.pictures() if picture.is_old]
    assert old == [], "build them with `python tools/pictures.py`"


def test_a_picture_of_another_page_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    picture = pictures.Picture("one.png", "<p>Idle 61.1 %</p><script>older</script>", 10, 10)
    assert picture.is_old  # it is missing
    picture.path.write_bytes(b"")
    (tmp_path / pictures.FINGERPRINTS).write_text("{}")
    assert picture.is_old  # it has no fingerprint
    pictures.remember([picture])
    assert not picture.is_old
    assert picture._replace(page="<p>Idle 57.2 %</p><script>older</script>").is_old
    assert not picture._replace(page="<p>Idle 61.1 %</p><script>newer</script>").is_old
