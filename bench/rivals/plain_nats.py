"""nats-py and a real nats-server, core NATS over TCP: a subject per topic, one subscription `>`.

Settings: uvloop; the client's default publish buffer (2 MB, written when full); no pending limits in the subscriber.
Core NATS cannot wait for a subscriber; nothing is lost because a run fits into the server's buffers.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import nats
import uvloop

from bench.processes.late import LateTally
from bench.rivals.records import outgoing, tally_of
from bench.rivals.runs import Runs
from bench.workload.load import LEAD_NS, due_ns


def publish(address: str, form: str) -> None:
    uvloop.run(_publish(address, form))


def receive(address: str, form: str) -> None:
    uvloop.run(_receive(address, form))


async def _publish(address: str, form: str) -> None:
    client = await nats.connect(address)
    runs = Runs()
    while (load := await asyncio.to_thread(runs.next)) is not None:
        frames: Any = outgoing(form, load)
        if form == "messages":
            frames = [(topic.decode(), data) for topic, data in frames]
        else:
            frames = ((topic.decode(), data) for topic, data in frames)
        publish = client.publish
        if load.rate:
            frames = list(frames)
            began = time.time_ns() + LEAD_NS
            for due, (subject, data) in zip((due_ns(load) + began).tolist(), frames, strict=True):
                while time.time_ns() < due:  # noqa: ASYNC110  # the client's own task sends meanwhile
                    await asyncio.sleep(0)
                await publish(subject, data)
        else:
            began = time.time_ns()
            for subject, data in frames:
                await publish(subject, data)
        await client.flush()
        runs.sent(began)
    await client.close()


async def _receive(address: str, form: str) -> None:
    client = await nats.connect(address)
    done = asyncio.Event()
    tally = LateTally(done.set) if form == "late" else tally_of(form, done.set)
    tally.begin(0)

    async def take(message: Any) -> None:
        tally.count(message.subject, message.data)

    await client.subscribe("block" if form == "blocks" else ">", cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
    await client.flush()
    runs = Runs()
    while (load := await asyncio.to_thread(runs.next)) is not None:
        done.clear()
        tally.begin(load.messages)
        runs.receiving()
        await done.wait()
        if isinstance(tally, LateTally):
            runs.found(partial(tally.found, load))
        else:
            runs.received(tally.ended, tally.state())
    await client.close()
