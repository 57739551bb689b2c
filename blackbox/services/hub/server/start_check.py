"""Check a hub's newest days before it starts: their checksums, and cut records torn by a power loss."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

import numpy

from blackbox.archive.files.day import Manifest, recorded_days, segment_numbers, segment_path, slice_directory
from blackbox.archive.files.format import FILE_HEAD, FILE_HEAD_BYTES, MARK_HEAD_BYTES, RECORD_MAGIC, mark_at
from blackbox.archive.files.journal_record import is_cut, is_whole, next_record, size_at
from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.files.synced import RECENT_DAYS, read_synced
from blackbox.archive.record.crash_recovery import cut_segment
from blackbox.errors import DamagedError
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import uint32_at
from blackbox.native.tables.xxh3 import checksum_32

log = logging.getLogger("blackbox")

_STEP_BYTES: Final = 16 << 20


@njit(nogil=True, cache=True)
def _next_damage(memory: int, size: int, start: int, until: int) -> int:
    """Return the offset of the first damaged record or mark, or of the first one at or after `until`.

    Checks heads and bodies from `start` on. Returns `size` if neither exists.
    """
    offset = start
    while offset < min(size, until):
        step = size_at(memory + offset, size - offset)
        if step == 0:
            return offset
        if uint32_at(memory + offset) == RECORD_MAGIC:
            if not is_whole(memory + offset):
                return offset
        else:
            mark = mark_at(memory + offset)
            if mark.stored_checksum != checksum_32(memory + offset + MARK_HEAD_BYTES, numpy.int64(mark.stored_bytes)):
                return offset
        offset += step
    return offset


class _Checked(NamedTuple):
    """A segment and the number of its bytes before the first damage."""

    segment: Segment
    sound_bytes: int

    @property
    def left(self) -> int:
        return len(self.segment.memory) - self.sound_bytes


def check_days(directory: Path, slices: int, *, has_lost_power: bool) -> None:
    """Raise DamagedError if one of the newest days is damaged. No process may be writing to them.

    The last record or mark may be incomplete, as after a kill. With `has_lost_power` data that was not synced may be
    damaged: the journal is cut before the first damaged record.
    """
    days = recorded_days(directory)[-RECENT_DAYS:]
    for slice_id in range(slices):
        synced = read_synced(directory, slice_id) if has_lost_power else None
        checked = [each for day in days for each in _checked(day, slice_id)]
        created = [int(each.segment.memory[:FILE_HEAD_BYTES].view(FILE_HEAD)[0]["created"]) for each in checked]
        begun = created.index(synced.created_ns) if synced is not None and synced.created_ns in created else None
        for index, each in enumerate(checked):
            if begun is None or synced is None or index < begun:
                _check(each, checked[index + 1 :], may_be_torn=has_lost_power and begun is None)
            else:
                least = synced.size if index == begun else FILE_HEAD_BYTES
                if each.sound_bytes < least:
                    raise _damaged(each, "bytes that were on the disk cannot be read", least)
                if each.left:
                    _cut(checked[index:])
                    break


def _checked(day: Path, slice_id: int) -> list[_Checked]:
    """Return the segments of a slice and day that are not empty."""
    key_rule, found = Manifest.read(day).feed.key_rule, list[_Checked]()
    for number in segment_numbers(slice_directory(day, slice_id)):
        path = segment_path(day, slice_id, number)
        if path.stat().st_size > FILE_HEAD_BYTES:
            segment = Segment(path, slice_id, number, key_rule)
            if any(damage.path == path and damage.offset == 0 for damage in segment.damage):
                raise _damaged(_Checked(segment, 0), "the head is damaged", FILE_HEAD_BYTES)
            found.append(_Checked(segment, _sound_bytes(segment)))
    return found


def _sound_bytes(segment: Segment) -> int:
    offset, size = FILE_HEAD_BYTES, len(segment.memory)
    while offset < size:
        until = offset + _STEP_BYTES
        start, offset = offset, _next_damage(segment.address, size, offset, until)
        segment.release(start, offset)
        if offset < until:
            break
    return offset


def _check(each: _Checked, later: list[_Checked], *, may_be_torn: bool) -> None:
    """Raise DamagedError unless the segment is whole or ends as after a kill; with `may_be_torn` a power loss."""
    segment, sound = each.segment, each.sound_bytes
    if not each.left:
        return
    is_last = not any(other.segment.path.parent == segment.path.parent for other in later)
    is_torn = sound == segment.whole_bytes if may_be_torn else is_cut(segment.address + sound, each.left)
    if not (is_last and is_torn):
        raise _damaged(each, "it is not what was written", sound)


def _damaged(each: _Checked, what: str, least: int) -> DamagedError:
    segment, offset, size = each.segment, each.sound_bytes, len(each.segment.memory)
    following = next_record(segment.address, size, offset + 1)
    return refusal(Damage(segment.path, offset, max(least, following if following > 0 else size) - offset, what))


def refusal(damage: Damage) -> DamagedError:
    """Return the error that a hub raises at start because of damage."""
    return DamagedError(
        f"{damage}: the hub does not start without its stored messages: restore the file, or copy the directory of the "
        f"other hub of the pair"
    )


def _cut(checked: list[_Checked]) -> None:
    """Cut the first of these segments before its damage, and empty all others."""
    for each in reversed(checked):
        size = each.sound_bytes if each is checked[0] else 0
        log.warning("%s: cut %d bytes that were not synced", each.segment.path, len(each.segment.memory) - size)
        cut_segment(each.segment, size)
