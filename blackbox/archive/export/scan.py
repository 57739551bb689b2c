"""Recorded messages as a polars LazyFrame: a query reads only the columns and parts that it needs."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial, reduce

import polars
import pyarrow
from polars.io.plugins import register_io_source

from blackbox.archive.export.pushed import NUMBERS, TEXTS, Pushed, Read, compared


def lazy_frame(schema: pyarrow.Schema, read: Read) -> polars.LazyFrame:
    """Return a LazyFrame of these columns."""
    columns = _frame(schema.empty_table()).schema
    return register_io_source(partial(_scan, columns, read), schema=columns, is_pure=True)


def _scan(
    schema: polars.Schema,
    read: Read,
    names: list[str] | None,
    predicate: polars.Expr | None,
    rows: int | None,
    batch_rows: int | None,
) -> Iterator[polars.DataFrame]:
    """Yield frames for polars, which asks for some columns, a predicate, and at most `rows` rows."""
    parts = [] if predicate is None else conjuncts(predicate)
    whole = reduce(operator.and_, parts) if parts else None
    for batch in read(names, pushed_by(parts, schema)):
        frame = _frame(batch)
        frame = frame if whole is None else frame.filter(whole)
        if rows is not None:
            frame = frame.head(rows)
            rows -= len(frame)
        yield from frame.iter_slices(batch_rows) if batch_rows else (frame,)
        if rows == 0:
            return


def _frame(table: pyarrow.Table | pyarrow.RecordBatch) -> polars.DataFrame:
    return polars.DataFrame(polars.from_arrow(table))


def conjuncts(predicate: polars.Expr) -> list[polars.Expr]:
    """Return the parts of a predicate that are joined by AND, without dynamic ones.

    A dynamic predicate is a hint of `top_k` that polars cannot apply to a frame.
    """
    found, pending = [], [predicate]
    while pending:
        part = pending.pop()
        inputs = _inputs(part)
        if len(inputs) == 2 and part.meta.eq(inputs[0] & inputs[1]):
            pending += reversed(inputs)
        elif not str(part).startswith("dynamic_pred"):
            found.append(part)
    return found


def pushed_by(parts: list[polars.Expr], schema: polars.Schema) -> Pushed:
    """Return the usable conditions of the parts of a predicate on a frame with these columns."""
    return Pushed().both(condition for part in parts if (condition := _condition(part, schema)) is not None)


def _inputs(expression: polars.Expr) -> list[polars.Expr]:
    """Return the operands of an expression, in order."""
    return [] if expression.meta.is_column() or expression.meta.is_literal() else expression.meta.pop()[::-1]


def _condition(part: polars.Expr, schema: polars.Schema) -> Pushed | None:
    """Return the condition of a comparison of a column with constants, which polars puts on the right."""
    column, *values = _inputs(part) or [part]
    if not values or not column.meta.is_column() or any(value.meta.root_names() for value in values):
        return None
    name = column.meta.output_name()
    constants = [polars.select(value).to_series() for value in values]
    if len(values) == 1 and constants[0].dtype == polars.List:
        sign, constants = ("in" if part.meta.eq(column.is_in(values[0])) else ""), [constants[0].explode()]
    elif len(values) == 1:
        sign = _sign(part, column, values[0])
    else:
        sign = "between" if len(values) == 2 and part.meta.eq(column.is_between(values[0], values[1])) else ""
    if name in TEXTS and sign in ("==", "in"):
        return Pushed(texts=((name, frozenset(constants[0].cast(polars.String).drop_nulls())),))
    numbers = [_integers(each, schema[name]) for each in constants] if sign and name in NUMBERS else [[]]
    if not all(numbers):
        return None
    if sign == "between":
        return compared(name, ">=", numbers[0]).both([compared(name, "<=", numbers[1])])
    return compared(name, sign, numbers[0])


def _sign(part: polars.Expr, column: polars.Expr, value: polars.Expr) -> str:
    """Return the sign of a comparison; empty if unknown."""
    signs = {"==": operator.eq, ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
    return next((sign for sign, compare in signs.items() if part.meta.eq(compare(column, value))), "")


def _integers(constants: polars.Series, kind: polars.DataType) -> list[int]:
    """Return constants of a column's type as integers; empty if they have another type."""
    if constants.dtype != kind or constants.null_count():
        return []
    numbers: list[int] = constants.to_physical().to_list()
    return numbers
