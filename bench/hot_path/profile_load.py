"""Load for a profiler: publisher and subscriber in one process, so that one profile has the whole hot path.

    publish_many() ==ring==> sender ==> PUB, I/O thread ==TCP==> SUB, I/O thread | slice thread ==> 2 workers

`python -m bench.hot_path.profile_load SECONDS OUT.json` delivers for SECONDS, then writes the number of messages, start
and end on the monotonic clock, and each thread's name and CPU time.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from numba.core.codegen import CPUCodeLibrary
from numba.core.dispatcher import Dispatcher

from bench.bench_delivery import PREFIXES
from bench.processes.receiver import FOREVER_NS, wait_for
from bench.workload.messages import POOL_MESSAGES, TOPICS, make_pool
from bench.workload.tally import count_compiled
from blackbox import Feed, Publisher, SlowPolicy, Subscriber

_TASKS = Path("/proc/self/task")
_SYMBOL = struct.Struct("<IBBHQQ")
CALLER = "caller of publish_many"
_FUNCTION = 2
_OBJECTS: dict[str, bytes] = {}


def _tids() -> set[int]:
    return {int(task.name) for task in _TASKS.iterdir()}


def _cpu_ns(tid: int) -> int:
    return int((_TASKS / str(tid) / "schedstat").read_text().split()[0])


def _names(publishing: set[int], subscribing: set[int]) -> dict[int, str]:
    """Return each thread's name: Python's, or libzmq's with its side of the connection."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for tid in _tids():
        comm = (_TASKS / str(tid) / "comm").read_text().strip()
        side = "publisher" if tid in publishing else "subscriber" if tid in subscribing else ""
        name = known.get(tid, comm)
        if name == "MainThread":
            name = CALLER
        found[tid] = f"{side} {'I/O thread' if 'IO' in comm else comm}" if tid not in known and side else name
    return found


def _keep_objects() -> None:
    """Keep the code that numba loads from its cache; otherwise the addresses of its functions are lost."""
    load = CPUCodeLibrary._set_compiled_object

    def keep(library: Any, code: bytes) -> None:
        _OBJECTS[library.name] = code
        load(library, code)

    CPUCodeLibrary._set_compiled_object = keep


def _compiled_symbols() -> Iterator[tuple[int, int, str]]:
    """Yield address, size and name of each function that numba compiled in this process."""
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()) if getattr(module, "__name__", "").startswith("blackbox") else ():
            for result in value.overloads.values() if isinstance(value, Dispatcher) else ():
                entry = result.fndesc.llvm_func_name
                library = result.library
                # Private to numba, but the only source of code addresses: without it names are missing.
                code = getattr(library, "_compiled_object", None) or _OBJECTS.get(library.name, b"")
                symbols = dict(_functions(code))
                if address := library.get_pointer_to_function(entry) if entry in symbols else 0:
                    base, section = address - symbols[entry][0], symbols[entry][2]
                    for name, (place, size, where) in symbols.items():
                        if where == section:
                            yield base + place, size, plain(name)


def _functions(code: bytes) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield name, offset, size and section of each function of a 64-bit little-endian ELF object."""
    if code[:4] != b"\x7fELF":
        return
    sections_at, size, count = (*struct.unpack_from("<Q", code, 0x28), *struct.unpack_from("<HH", code, 0x3A))
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + size * i) for i in range(count)]
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind != _FUNCTION:  # a symbol table has the same number
            continue
        text_at = sections[link][4]
        for place in range(offset, offset + length, _SYMBOL.size):
            name_at, info, _, section, value, extent = _SYMBOL.unpack_from(code, place)
            if info & 0xF == _FUNCTION and extent:
                end = code.index(b"\0", text_at + name_at)
                yield code[text_at + name_at : end].decode(), (value, extent, section)


def plain(name: str) -> str:
    """Return `slice_loop.run_slice` for numba's mangled name; return other names unchanged."""
    found = re.match(r"_ZN(\d.*)", name)
    parts, rest = [], found[1] if found else ""
    while digits := re.match(r"\d+", rest):
        size, rest = int(digits[0]), rest[len(digits[0]) :]
        parts.append(rest[:size])
        rest = rest[size:]
    parts = [part for part in parts if part not in ("blackbox", "_3clocals_3e")]
    return ".".join(parts[:2]) or name


def _write_map() -> None:
    """Write the file where perf looks up names of compiled functions."""
    lines = sorted({f"{address:x} {size:x} {name}" for address, size, name in _compiled_symbols()})
    Path(f"/tmp/perf-{os.getpid()}.map").write_text("\n".join(lines) + "\n")


def deliver(publisher: Publisher, seconds: float) -> int:
    """Publish for `seconds`; return the number of messages."""
    pool = make_pool()
    end = time.monotonic() + seconds
    messages = 0
    while time.monotonic() < end:
        publisher.publish_many(pool.topics, pool.topic_index, pool.payloads, pool.ts_event)
        messages += POOL_MESSAGES
    publisher.flush()
    return messages


def main(seconds: float, out: Path) -> None:
    """Warm up, deliver and write the results."""
    _keep_objects()
    feed = Feed.local("profile", slices=1)
    before = _tids()
    with Publisher(feed, when_full="wait") as publisher:
        publishing = _tids() - before
        subscriber = Subscriber(feed, workers=2, slow=SlowPolicy(max_lag=FOREVER_NS / 1e9))
        for prefix in PREFIXES:
            subscriber.on_compiled(prefix, state=numpy.zeros((TOPICS, 3), numpy.int64))(count_compiled)
        with subscriber:
            publisher.wait_for_subscribers(timeout=60)
            warm = deliver(publisher, 0.5)
            wait_for(subscriber, warm)
            _write_map()
            names = _names(publishing, _tids() - before - publishing)
            begun, used = time.monotonic(), {tid: _cpu_ns(tid) for tid in names}
            messages = deliver(publisher, seconds)
            wait_for(subscriber, warm + messages)
            ended = time.monotonic()
            threads = {tid: [name, _cpu_ns(tid) - used[tid]] for tid, name in names.items()}
    told: dict[str, Any] = {
        "messages": messages,
        "begun": begun,
        "ended": ended,
        "pid": os.getpid(),
        "threads": threads,
    }
    out.write_text(json.dumps(told))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
