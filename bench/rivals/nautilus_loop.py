"""nautilus_trader's back-test engine: a strategy that receives each trade tick, without orders, in one thread."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy
from nautilus_trader.backtest.config import BacktestEngineConfig
from nautilus_trader.backtest.engine import BacktestEngine
from nautilus_trader.config import LoggingConfig
from nautilus_trader.core.nautilus_pyo3 import FIXED_PRECISION
from nautilus_trader.model.currencies import USD
from nautilus_trader.model.data import TradeTick
from nautilus_trader.model.enums import AccountType, OmsType
from nautilus_trader.model.identifiers import InstrumentId, Symbol, Venue
from nautilus_trader.model.instruments import Equity
from nautilus_trader.model.objects import Money, Price, Quantity
from nautilus_trader.trading.strategy import Strategy

from bench.rivals.pair_strategy import SYMBOLS, expect_decisions, fresh_state, see, tape_trades

_DECIMALS: Final = 4
"""Decimal places of a price."""
_RAW: Final = 10 ** (FIXED_PRECISION - _DECIMALS)
_VENUE: Final = Venue("TAPE")


class _PairStrategy(Strategy):  # type: ignore[misc]
    def __init__(self, instruments: list[InstrumentId]) -> None:
        super().__init__()
        self.sums = fresh_state().tolist()
        self._number_of = {instrument: number for number, instrument in enumerate(instruments)}

    def on_start(self) -> None:
        for instrument in self._number_of:
            self.subscribe_trade_ticks(instrument)

    def on_trade_tick(self, tick: TradeTick) -> None:
        see(self._number_of[tick.instrument_id], tick.price.raw // _RAW, self.sums)

    def on_reset(self) -> None:
        self.sums = fresh_state().tolist()


class Engine:
    """An engine with the sorted trades of `days` days in memory, as its own objects."""

    def __init__(self, days: int) -> None:
        self._days = days
        quiet = LoggingConfig(bypass_logging=True)
        self._engine = BacktestEngine(BacktestEngineConfig(logging=quiet, run_analysis=False))
        self._engine.add_venue(_VENUE, OmsType.NETTING, AccountType.CASH, [Money(1_000_000, USD)], base_currency=USD)
        records, symbols, times = tape_trades(days)
        instruments = [InstrumentId(Symbol(symbol), _VENUE) for symbol in SYMBOLS]
        ticks: list[Any] = []
        for number, instrument in enumerate(instruments):
            self._engine.add_instrument(_equity(instrument))
            mine = symbols == number
            stamps = times[mine].astype(numpy.uint64)
            ticks += TradeTick.from_raw_arrays_to_list(
                instrument,
                _DECIMALS,
                0,
                records["price"][mine] / 10**_DECIMALS,
                records["size"][mine].astype(numpy.float64),
                numpy.zeros(len(stamps), numpy.uint8),
                list(map(str, range(len(stamps)))),
                stamps,
                stamps,
            )
        self._engine.add_data(ticks)
        self._strategy = _PairStrategy(instruments)
        self._engine.add_strategy(self._strategy)

    def rate(self) -> float:
        """Run and return M trades/s."""
        self._engine.reset()
        started = time.perf_counter()
        self._engine.run()
        seconds = time.perf_counter() - started
        expect_decisions(self._strategy.sums, self._days)
        return len(tape_trades(self._days)[0]) / seconds / 1e6


def _equity(instrument: InstrumentId) -> Equity:
    return Equity(
        instrument_id=instrument,
        raw_symbol=instrument.symbol,
        currency=USD,
        price_precision=_DECIMALS,
        price_increment=Price.from_str("0.0001"),
        lot_size=Quantity.from_int(1),
        ts_event=0,
        ts_init=0,
    )
