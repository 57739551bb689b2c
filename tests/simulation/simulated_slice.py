"""A slice without threads and sockets: its compiled decisions, called step by step."""

from __future__ import annotations

import os
from functools import cache
from typing import Final, NamedTuple, Protocol

import numpy

from blackbox.block.form.format import HEADER, MAX_SEQUENCE, read_header
from blackbox.block.position import End, Position
from blackbox.native.compile.jit import njit
from blackbox.native.compile.kept_arguments import Kept, kept_at
from blackbox.native.tables.prefix_trie import Trie, build_trie
from blackbox.receive.order import epoch_changes as order_epochs
from blackbox.receive.order import held as order_held
from blackbox.receive.order import losses as order_losses
from blackbox.receive.order import order
from blackbox.receive.order import repair as order_repair
from blackbox.receive.order.epochs import EpochVerdict, epoch_before, epoch_state_at, judge_epoch
from blackbox.receive.order.state import (
    NONE,
    UNKNOWN,
    Answers,
    Order,
    OrderAt,
    Phase,
    Verdict,
    is_unsettled,
    order_state_at,
)
from blackbox.receive.state import SliceCounters, slice_counters_at

_WAKE: Final = os.open(os.devnull, os.O_WRONLY)
_MESSAGE_BYTES: Final = 100
LINE_WAIT_NS: Final = 5 * 10**9
LINE_DEAD_NS: Final = 12 * 10**9
_LOSSES: Final = -2
_at = kept_at(OrderAt)


@cache
def _trie_of(prefixes: tuple[bytes, ...]) -> Trie:
    return build_trie(sorted(prefixes))


class SentBlock(NamedTuple):
    """A block without payloads."""

    sequence: int
    span: int
    previous: int
    key_sequence: int
    key: bytes
    epoch: int
    rows: tuple[int, ...] = ()
    """Offsets of its messages, the first and the last of the span among them. Empty: all."""

    @property
    def messages(self) -> int:
        return len(self.rows) or self.span

    @property
    def end(self) -> int:
        """Sequence after its last message."""
        return self.sequence + self.span


class Out(Protocol):
    """Receiver of a slice's messages and gaps."""

    def deliver(self, block: SentBlock, first: int) -> None:
        """Receive the messages of a block from row `first` on."""

    def report(self, epoch: int, key: bytes | None, first: int, lost: int) -> None:
        """Receive a gap of one key; None: of any key."""


@njit(nogil=True)
def _enter(kept: int, epoch: int, line: int, proven: int, now: int) -> int:
    at = _at(kept)
    entered: int = judge_epoch(epoch_state_at(at.epochs), slice_counters_at(at.counters), epoch, line, proven, now)
    return entered


@njit(nogil=True)
def _judge(kept: int, header: int, span: int, key: int, line: int, in_force: int, force: int) -> int:
    result: int = order.judge(_at(kept), key, line, read_header(header), span, in_force, force)
    return result


@njit(nogil=True)
def _hold(kept: int, header: int, span: int, key: int, now: int) -> int:
    place: int = order_held.hold(_at(kept), key, read_header(header), span, now, 0)
    return place


@njit(nogil=True)
def _let_go(kept: int) -> int:
    place: int = order_held.let_go(_at(kept))
    return place


@njit(nogil=True)
def _next(kept: int, now: int, before: int) -> int:
    """Return the place of the next deliverable held block, NONE, or _LOSSES that must be reported before."""
    at = _at(kept)
    if order_losses.has_losses(at):
        return _LOSSES
    if before != MAX_SEQUENCE:
        order_repair.goes_live(at)
    place: int = order.next_ready(at, now, before)
    if place == NONE and before == 0 and is_unsettled(order_state_at(at.state)):
        order.settle(at, now)
        place = _LOSSES if order_losses.has_losses(at) else NONE
    return place


@njit(nogil=True)
def _release(kept: int, place: int) -> int:
    first: int = order.release(_at(kept), place)
    return first


@njit(nogil=True)
def _next_loss(kept: int) -> tuple[int, int, int, int]:
    at = _at(kept)
    if not order_losses.has_losses(at):
        return 0, 0, 0, 0
    loss = order_losses.next_loss(at)
    return loss.epoch, loss.sequence, loss.count, loss.key


@njit(nogil=True)
def _begin_live_epoch(kept: int) -> None:
    at = _at(kept)
    order_epochs.begin_live_epoch(at, epoch_before(epoch_state_at(at.epochs)))


@njit(nogil=True)
def _leaves_to_archives(kept: int) -> bool:
    leaves: bool = order_epochs.leaves_to_archives(_at(kept))
    return leaves


@njit(nogil=True)
def _believe(kept: int, line: int, sequence: int, now: int) -> int:
    at = _at(kept)
    place: int = NONE
    if order_state_at(at.state).doubted[line] != 0 and not order.believed(at, line, sequence, now):
        place = order.refute(at, line)
    return place


@njit(nogil=True)
def _refute(kept: int, line: int) -> int:
    place: int = order.refute(_at(kept), line)
    return place


@njit(nogil=True)
def _is_plausible(kept: int, line: int, sequence: int) -> bool:
    is_plausible: bool = order._is_plausible(order_state_at(_at(kept).state), line, sequence, sequence)
    return is_plausible


@njit(nogil=True)
def _keep_doubted(kept: int, header: int, span: int, key: int, line: int) -> int:
    place: int = order.keep_doubted(_at(kept), key, line, read_header(header), span, 0)
    return place


@njit(nogil=True)
def _note_line(kept: int, line: int, following: int, in_force: int) -> None:
    at = _at(kept)
    order._note_line(order_state_at(at.state), line, following, following, in_force)


@njit(nogil=True)
def _note_end(kept: int, key: int, epoch: int, end: int, count: int) -> None:
    order.note_end(_at(kept), key, epoch, end, count)


@njit(nogil=True)
def _note_told_end(kept: int, key: int, following: int, end: int, count: int) -> None:
    order.note_told_end(_at(kept), key, following, end, count)


@njit(nogil=True)
def _note_told(kept: int, epoch: int, following: int) -> None:
    order_epochs.note_told(_at(kept), epoch, following)


@njit(nogil=True)
def _heard_told(kept: int, epoch: int, following: int) -> bool:
    order_epochs.lose_left(_at(kept), epoch, following)
    is_newest: bool = order.note_told_next(order_state_at(_at(kept).state), epoch, following)
    return is_newest


@njit(nogil=True)
def _settle(kept: int, now: int) -> None:
    order.settle(_at(kept), now)


@njit(nogil=True)
def _enter_archived(kept: int, epoch: int, sequence: int) -> bool:
    more: bool = order_epochs.enter_archived(_at(kept), epoch, sequence)
    return more


@njit(nogil=True)
def _judge_recorded(kept: int, header: int, span: int, key: int) -> int:
    first: int = order_repair.judge_recorded(_at(kept), key, read_header(header), span)
    return first


@njit(nogil=True)
def _note_passed(kept: int, epoch: int, following: int, is_all: int, in_force: int, now: int) -> bool:
    goes_on: bool = order_repair.note_passed(_at(kept), epoch, following, is_all, in_force, now)
    return goes_on


@njit(nogil=True)
def _note_gone(kept: int, epoch: int, following: int) -> None:
    order_repair.note_gone(_at(kept), epoch, following)


@njit(nogil=True)
def _give_up(kept: int, in_force: int) -> bool:
    gave: bool = order_repair.give_up(_at(kept), in_force)
    return gave


@njit(nogil=True)
def _number_key(kept: int, text: int, size: int) -> int:
    number: int = order_losses.number_key(_at(kept), text, size)
    return number


class SimulatedSlice:
    """One slice. Each method is a step of a slice thread."""

    def __init__(self, out: Out, prefixes: tuple[bytes, ...], lines: int, *, repairs: bool, held_messages: int) -> None:
        self._out, self.prefixes = out, prefixes
        self.counters = SliceCounters()
        self.order = Order(
            16, lines, LINE_WAIT_NS, LINE_DEAD_NS, held_messages * _MESSAGE_BYTES, self.counters, repairs=repairs
        )
        self.state = self.order.state
        self.state.wake_fd, self.state.answers = _WAKE, Answers.EXPECTED
        self.state.wants_full = int(b"" in prefixes)
        for line in range(2):
            self.order.epochs.heard_ns[line] = -(1 << 62)
        self._kept = Kept(self.order.at)
        self._address = self._kept.address
        self._header = numpy.zeros(1, HEADER)
        self._at = self._header.ctypes.data
        self._held: dict[int, SentBlock] = {}
        self._before = _trie_of(())
        self._confirmed = [0] * lines
        self._names: dict[bytes, int] = {}
        self._doubted: dict[int, SentBlock] = {}
        """Block of each line with an epoch that is not accepted yet."""
        self.is_unconfirmed = False
        """True if an epoch began: the filters must be confirmed again."""

    def begin(self, position: Position, images: int = 0) -> None:
        self.order.begin(position, images=images, is_full=b"" in self.prefixes)
        self._before = _trie_of(self.prefixes)

    @property
    def cursor(self) -> Position | None:
        """Position from which archives must be read; None: the slice is live."""
        return None if self.state.phase == Phase.LIVE else Position(self.state.epoch, self.state.cursor)

    @property
    def is_confirmed(self) -> bool:
        """True if a line has confirmed the newest filters."""
        return any(self._confirmed)

    @property
    def live_epoch(self) -> int:
        return self.order.epochs.epoch

    def _key(self, name: bytes) -> int:
        if name not in self._names:
            text = numpy.frombuffer(name, numpy.uint8)
            self._names[name] = _number_key(self._address, text.ctypes.data, len(name))
        return self._names[name]

    def change_filters(self, prefixes: tuple[bytes, ...]) -> None:
        """Change the filters, which must be confirmed again."""
        self.prefixes = prefixes
        order.change_filters(self.order.at, _trie_of(prefixes), int(b"" in prefixes))
        if self.state.is_strict:
            self._before = _trie_of(prefixes)
        self._confirmed = [0] * len(self._confirmed)

    def _enter(self, line: int, epoch: int, now: int, proven: int = 0) -> int:
        """Judge the epoch of a block, heartbeat or confirmation."""
        entered: int = _enter(self._address, epoch, line, proven, now)
        if entered == EpochVerdict.NEW:
            self._confirmed, self.is_unconfirmed = [0] * len(self._confirmed), not proven
            self._begin_epoch(now)
        elif entered:
            self._doubted.pop(line, None)
        return entered

    def _begin_epoch(self, now: int) -> None:
        for line in range(2):
            self._held.pop(_refute(self._address, line), None)
        if _leaves_to_archives(self._address):
            self._let_all_go()
        else:
            self._release(now, before=MAX_SEQUENCE)
        _begin_live_epoch(self._address)
        self._report()
        doubted, self._doubted = self._doubted, {}
        for line, block in sorted(doubted.items(), key=lambda item: item[1].sequence):
            if block.epoch == self.live_epoch:
                self._order_live(line, block, now)

    def confirmed(self, line: int, epoch: int, following: int, ends: dict[bytes, End], now: int) -> None:
        """Receive a confirmation of the newest filters on a line."""
        if self._enter(line, epoch, now, proven=1) == EpochVerdict.STALE:
            return
        self._believe(line, following, now, is_block=True)
        self._confirmed[line] = 1
        self._note(line, epoch, following, ends)
        order.confirm(self.order.at, self._before, following)
        self._before = _trie_of(self.prefixes)
        self._settle(now)

    def _settle(self, now: int) -> None:
        self._release(now)
        _settle(self._address, now)
        self._release(now)

    def _note(self, line: int, epoch: int, following: int, ends: dict[bytes, End]) -> None:
        _note_line(self._address, line, following, self._confirmed[line])
        is_newest = _heard_told(self._address, epoch, following)
        for key, end in ends.items():
            if key.startswith(self.prefixes):
                _note_end(self._address, self._key(key), epoch, *end)
                if is_newest:
                    _note_told_end(self._address, self._key(key), following, *end)

    def lost_line(self, line: int) -> None:
        self._confirmed[line] = 0

    def live(self, line: int, block: SentBlock, now: int) -> None:
        entered = self._enter(line, block.epoch, now)
        if entered == EpochVerdict.DOUBTED:
            self._doubted[line] = block
        elif entered != EpochVerdict.STALE:
            self._order_live(line, block, now)

    def _order_live(self, line: int, block: SentBlock, now: int) -> None:
        self._believe(line, block.sequence, now, is_block=True)
        self._put(block)
        key, span, in_force = self._key(block.key), block.span, self._confirmed[line]
        verdict = _judge(self._address, self._at, span, key, line, in_force, 0)
        if verdict == Verdict.MAKE_ROOM:
            self._release(now, before=block.sequence)
            self._put(block)
            verdict = _judge(self._address, self._at, span, key, line, in_force, 1)
            self._report()
        if verdict == Verdict.HOLD:
            self._held[_hold(self._address, self._at, span, key, now)] = block
        elif verdict == Verdict.LET_GO:
            self._let_all_go()
        elif verdict == Verdict.IMPLAUSIBLE:
            place = _keep_doubted(self._address, self._at, span, key, line)
            if place != NONE:
                self._held[place] = block
        elif verdict >= 0:
            self._out.deliver(block, verdict)
        self._release(now)

    def _believe(self, line: int, sequence: int, now: int, *, is_block: bool) -> bool:
        """Accept or refute a doubted block of the line. Return False for a heartbeat with an implausible sequence."""
        self._held.pop(_believe(self._address, line, sequence, now), None)
        return is_block or _is_plausible(self._address, line, sequence)

    def _put(self, block: SentBlock) -> None:
        header = self._header[0]
        header["sequence"], header["previous"], header["key_sequence"] = (
            block.sequence,
            block.previous,
            block.key_sequence,
        )
        header["epoch"], header["count"], header["body_bytes"] = (
            block.epoch,
            block.messages,
            _MESSAGE_BYTES * block.messages,
        )

    def heartbeat(self, line: int, epoch: int, following: int, ends: dict[bytes, End], now: int) -> None:
        if self._enter(line, epoch, now) in (EpochVerdict.DOUBTED, EpochVerdict.STALE) or not self._believe(
            line, following, now, is_block=False
        ):
            return
        self._note(line, epoch, following, ends)
        if self._confirmed[line]:
            self._settle(now)
        else:
            self._release(now)

    def tick(self, now: int) -> None:
        """Check if the wait for a line has expired."""
        self._release(now)

    def image(self, now: int) -> None:
        self.state.images -= 1
        self._release(now)

    def archived(self, request: int, block: SentBlock, now: int) -> None:
        if request != self.state.request or self.state.phase == Phase.LIVE or not block.key.startswith(self.prefixes):
            return
        self._enter_archived(block.epoch, block.sequence)
        self._put(block)
        first = _judge_recorded(self._address, self._at, block.span, self._key(block.key))
        self._report()
        if first >= 0:
            self._out.deliver(block, first)
        self._release(now)

    def _enter_archived(self, epoch: int, sequence: int) -> None:
        while _enter_archived(self._address, epoch, sequence):
            self._report()
        self._report()

    def passed(self, request: int, epoch: int, following: int, now: int, *, is_all: bool) -> None:
        """Note that archives have returned everything before a sequence."""
        if request != self.state.request or self.state.phase == Phase.LIVE:
            return
        in_force = int(any(self._confirmed))
        if _note_passed(self._address, epoch, following, int(is_all), in_force, now):
            self._enter_archived(epoch, following)
            _note_passed(self._address, epoch, following, 0, in_force, now)
        self._release(now)

    def gone(self, request: int, epoch: int, following: int, now: int) -> None:
        """Note that archives lack all messages before a sequence."""
        if request == self.state.request and self.state.phase != Phase.LIVE:
            _note_gone(self._address, epoch, following)
            self._release(now)

    def told(self, request: int, epoch: int, following: int, ends: dict[bytes, End]) -> None:
        """Note the end of an epoch that is over, as archives report it."""
        if request == self.state.request and self.state.phase != Phase.LIVE and epoch == self.state.epoch:
            _note_told(self._address, epoch, following)
            for key, end in ends.items():
                if key.startswith(self.prefixes):
                    _note_end(self._address, self._key(key), epoch, *end)

    def give_up(self, request: int, now: int) -> None:
        """Switch to live although archives lack messages before it."""
        if request != self.state.request or self.state.phase == Phase.LIVE or not self.live_epoch:
            return
        self._enter_archived(self.live_epoch, 0)
        _give_up(self._address, int(any(self._confirmed)))
        self._release(now)

    def _release(self, now: int, before: int = 0) -> None:
        while (place := _next(self._address, now, before)) != NONE:
            if place == _LOSSES:
                self._report()
                continue
            block = self._held.pop(place)
            first = _release(self._address, place)
            self._report()
            if first >= 0:
                self._out.deliver(block, first)

    def _let_all_go(self) -> None:
        while (place := _let_go(self._address)) != NONE:
            del self._held[place]

    def _report(self) -> None:
        while (loss := _next_loss(self._address))[2]:
            epoch, sequence, count, key = loss
            self._out.report(epoch, None if key == UNKNOWN else list(self._names)[key], sequence, count)
