"""The put log by itself: what it knows of its clients, whatever ends its process."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy
import pytest

from blackbox.errors import JournalError
from blackbox.hub.protocol import PLACE
from blackbox.hub.put_log import PutLog
from blackbox.testing import wait_until


def put(log: PutLog, client: str, first: int, count: int, taken_ns: int = 1) -> int:
    with log.transaction():
        return log.add(client, first, count, numpy.zeros(count, PLACE).tobytes(), "", b"request", taken_ns)


def begin(log: PutLog, client: str, session: int = 1) -> None:
    with log.transaction():
        log.begin_session(client, session)


def test_a_log_that_nobody_has_closed_knows_the_last_put_of_each_client(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with PutLog(path, 1, 10, 10) as log:
        for client in ("a", "b", "idle"):
            begin(log, client)
        put(log, "a", 1, 3)
        log.drop(put(log, "a", 4, 2))  # which forgets the row before
        put(log, "b", 1, 7)
        assert log.answered("a", 1) is None
        for each in tmp_path.iterdir():  # as the system has them when the process is killed here
            shutil.copy(each, tmp_path / each.name.replace("log", "killed"))
        with PutLog(tmp_path / "killed", 1, 10, 10) as killed:
            assert [killed.client(each) for each in ("a", "b", "idle", "c")] == [(1, 5), (1, 7), (1, 0), None]
            begin(killed, "b", 2)
            assert killed.client("b") == (2, 7)


def test_what_a_transaction_that_was_given_up_has_said_of_a_client_is_forgotten(tmp_path: Path) -> None:
    with PutLog(tmp_path / "log", 10, 10, 10) as log:
        begin(log, "a")
        put(log, "a", 1, 2)
        with pytest.raises(ZeroDivisionError), log.transaction():
            log.add("a", 3, 2, numpy.zeros(2, PLACE).tobytes(), "", None, 1)
            log.begin_session("a", 5)
            log.begin_session("b", 1)
            raise ZeroDivisionError
        assert (log.client("a"), log.client("b")) == ((1, 2), None)
        put(log, "a", 3, 1)
    with PutLog(tmp_path / "log", 10, 10, 10) as log:
        assert log.client("a") == (1, 3)


def test_a_client_that_has_put_since_is_not_the_one_to_be_forgotten(tmp_path: Path) -> None:
    with PutLog(tmp_path / "log", 10, 10, most_clients=2) as log:
        begin(log, "old")
        begin(log, "older")
        put(log, "old", 1, 1, taken_ns=1 << 62)
        begin(log, "new")
        assert (log.client("old"), log.client("older"), log.client("new")) == ((1, 1), None, (1, 0))


def test_a_log_that_another_process_has_open_is_refused(tmp_path: Path) -> None:
    with PutLog(tmp_path / "log", 10, 10, 10), pytest.raises(JournalError, match="database is locked"):
        PutLog(tmp_path / "log", 10, 10, 10)


def test_what_is_committed_is_on_the_disk_once_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    with PutLog(tmp_path / "log", 10, 10, 10) as log:
        synced.clear()
        assert log.is_synced()
        log.begin_sync()
        wait_until(log.is_synced)
        assert sorted(synced) == ["log-wal", "log.a", "log.b"]


def test_a_disk_that_refuses_to_sync_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with PutLog(tmp_path / "log", 10, 10, 10) as log:
        monkeypatch.setattr(os, "fdatasync", refuse)
        log.begin_sync()
        with pytest.raises(JournalError, match=r"log cannot be used: .*Input/output error"):
            wait_until(log.is_synced)
