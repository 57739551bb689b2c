"""Formats numbers, ratios, tables and links of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def number(value: float | None) -> str:
    """Format three digits: `0.00123`, `1.23`, `123`, `12,346`; "" for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    rows = list(rows)
    figures = [all(row[place][:1] in "-0123456789" for row in rows) for place in range(len(head))]
    yield "|" + "".join("---:|" if is_figure else "---|" for is_figure in figures)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


def times(ratio: float) -> str:
    return f"{ratio:.2f} ×" if 0.1 <= ratio < 10 else f"{number(ratio)} ×"


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return "#" + "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_").replace(" ", "-")
