"""The table of protected regions; other tests read lost pages, this one forgets regions."""

from __future__ import annotations

from typing import Any

import pytest

from blackbox.native.memory import lost_pages


def test_a_region_forgotten_while_the_table_grows_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may forget one in the thread that grows the table."""
    monkeypatch.setattr(lost_pages._Table, "_install", lambda _: None)
    table = lost_pages._Table()
    numbers = [table.add(1_000 * number, 1_000 * number + 1) for number in range(1, lost_pages._FIRST_ROOM + 1)]

    class Tables(list[Any]):
        def append(self, grown: Any) -> None:
            table.remove(numbers[7])
            super().append(grown)

    table._tables = Tables(table._tables)
    table.add(1, 2)
    assert table._region(numbers[7])[:2].tolist() == [0, 0]
    assert table._region(numbers[8])[0] == 9_000
    assert table.add(3, 4) == numbers[7]
