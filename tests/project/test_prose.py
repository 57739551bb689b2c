"""Hold comments, docstrings and messages to plain English: subject first, the field's verbs, no riddles."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_rooms import ROOT

_HABITS = {
    "begin with the noun": r"(?:^[\s#\"']*|(?<=[.:;] ))"
    r"(?:Who(?:ever)?|What(?:ever)?|Whether|Of|How (?:far|many|much|long))\b(?![^.?\n]*\?)",
    "name the thing": r"\b(?:of|from|to|by|with|than|has|gets?|takes?) (?:who|whoever|whatever)\b|\bthat which\b",
    "report, notify, log or return": r"(?<!\.)\b(?:told\b(?!\.\w|\[| =)|untold\b)"
    r"|\btells? (?:of|how|whether|what|which|it|them)\b",
    "'instead of' or 'in order'": r"\bin (?:its |their )?places? of\b|\bin (?:its|their) places?\b",
    "'next to', 'along with' or 'compared with'": r"\bbeside\b",
    "say it positively": r"\bthat is none\b|\bis nothing of\b|\b(?:nobody|somebody|everybody)\b",
    "'again', 'still', 'during' or 'on its own'": r"\b(?:anew|amid|as ever|for once|all the same|of its own accord)\b",
    "two sentences": r"\bof (?:which|whom)\b",
    "'must' or 'is available'": r"\b(?:is|are) (?:not )?to be\b|\b(?:can|to) be had\b",
    "release or switch to": r"\b(?:lets?|letting) go\b|\bgo(?:es|ne)? over to\b",
    "a simpler tense": r"\b(?:has|have|had) had\b",
    "'after' for time and order": r"\bbehind (?:the (?:last|first|gap|message|block|number)|what|those)\b",
}
_ANY = re.compile("|".join(f"({habit})" for habit in _HABITS.values()), re.MULTILINE)
_TEXT = re.compile(r"""#.*|\"{3}(?:.|\n)*?\"{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")
_CODE = re.compile(r"`[^`\n]*`|\{[^{}\n]*\}|\bhttps?://\S+|>>> .*|\$ .*")


def _folders() -> list[Path]:
    """Return the rooms: the folders of the code and of its tests, and the other top folders."""
    rooms = [path for top in ("blackbox", "tests") for path in (ROOT / top).iterdir() if any(path.glob("*.py"))]
    return sorted([*rooms, ROOT / "bench", ROOT / "examples", ROOT / "feeds", ROOT / "blackbox", ROOT / "tests"])


def _prose(source: str) -> Iterator[str]:
    """Yield the comments of a source, and its strings of at least four words."""
    for match in _TEXT.finditer(source):
        text = match.group()
        if text[0] == "#" or text.count(" ") >= 3:
            yield text


@pytest.mark.parametrize("room", _folders(), ids=lambda room: str(room.relative_to(ROOT)))
def test_prose_is_plain(room: Path) -> None:
    words, found = 0, list[str]()
    deep = room.parent != ROOT or room.name not in ("blackbox", "tests")
    for path in sorted(room.rglob("*.py") if deep else room.glob("*.py")):
        if path == Path(__file__):
            continue
        text = _CODE.sub("CODE", "\n".join(_prose(path.read_text())))
        words += len(text.split())
        for hit in _ANY.finditer(text):
            advice = list(_HABITS)[(hit.lastindex or 1) - 1]
            line = text[text.rfind("\n", 0, hit.end()) + 1 :].partition("\n")[0]
            found.append(f"{path.relative_to(ROOT)}: {advice}: {line.strip()}")
    assert len(found) <= words / 2000 + 1, "\n".join(found)
