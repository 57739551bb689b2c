"""Statistics of a publisher."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blackbox.publish.listeners.ack_tracker import RecorderPosition
from blackbox.publish.listeners.peers import PeerStatistics, most_of
from blackbox.publish.send.sender_state import SenderState
from blackbox.publish.send.slice_sender import SliceSender


class PublisherSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one slice of a publisher."""

    slice_id: int
    epoch: int
    """Epoch being sent; 0: none yet."""
    sequence: int
    """Sequence of the next message in this epoch."""
    messages: int
    """Messages sent, each counted once however many subscribers or lines it went to."""
    blocks: int
    """Blocks sent."""
    body_bytes: int
    """Bytes of the bodies sent."""
    unwanted: int
    """Messages not sent because no subscriber wanted their key."""
    waits: int
    """Times the sender waited up to 20 ms for a slow subscriber."""
    shared_memory_dropped: int
    """Messages that readers of shared memory missed because every place was in use."""
    discarded: int
    """Messages discarded by `close` because a subscriber did not take them in time."""
    topics: int
    """Distinct topics published, or only named in a call of `publish_many`."""
    subscribers: int
    """Confirmed subscribers."""


class PublisherStatistics(msgspec.Struct, frozen=True):
    """Counters of a publisher since its start, over all slices."""

    messages: int
    """Messages sent, each counted once however many subscribers or lines it went to."""
    blocks: int
    """Blocks sent."""
    body_bytes: int
    """Bytes of the bodies sent, each counted once however many subscribers or lines it went to."""
    unwanted: int
    """Messages not sent because no subscriber wanted their key."""
    waits: int
    """Times a sender waited up to 20 ms for a slow subscriber (`when_full="wait"`)."""
    shared_memory_dropped: int
    """Messages that readers of shared memory missed because every place was in use (`when_full="drop"`)."""
    discarded: int
    """Messages discarded by `close` because a subscriber did not take them in time."""
    topics: int
    """Distinct topics published, or only named in a call of `publish_many`."""
    subscribers: int
    """Confirmed subscribers of the slice with most of them."""
    put_out: int
    """Peers disconnected because they sent what no subscriber sends, or stopped reading for too long."""
    recorders: tuple[RecorderPosition, ...] = ()
    """Position of each recorder of each slice."""
    refused_peers: int = 0
    """Connections refused in the handshake because of a missing or wrong key (`[security]`)."""
    refused: int = 0
    """Subscriptions refused because the key had no right to them or the connection had reached its limit."""
    peers: tuple[PeerStatistics, ...] = ()
    """Connections of all slices and lines: the 100 with most subscriptions."""
    other_peers: int = 0
    """Further ones."""
    subscriptions: int = 0
    """Subscriptions in force, summed over all connections."""
    slices: tuple[PublisherSlice, ...] = ()
    """Counters of each slice."""
    datagrams: int = 0
    """Datagrams sent on multicast lines."""
    datagrams_failed: int = 0
    """Datagrams that the system refused to send, or that `close` discarded."""


def statistics_of(senders: Sequence[SliceSender]) -> PublisherStatistics:
    """Return a snapshot of the counters of all slices."""
    slices = tuple(map(_of_slice, senders))
    guards = [sender.sockets.guard for sender in senders]
    casters = [sender.sockets.caster for sender in senders if sender.sockets.caster is not None]
    peers = most_of(peer for guard in guards for peer in guard.peers())
    total = SenderState.sum_of([sender.sent for sender in senders] or [SenderState()])
    return PublisherStatistics(
        messages=total.messages,
        blocks=total.blocks,
        body_bytes=total.body_bytes,
        unwanted=total.unwanted,
        waits=total.waits,
        shared_memory_dropped=total.shared_memory_dropped,
        discarded=total.discarded,
        topics=sum(each.topics for each in slices),
        subscribers=max((each.subscribers for each in slices), default=0),
        put_out=sum(guard.put_out for guard in guards),
        recorders=tuple(position for sender in senders for position in sender.recorders()),
        refused_peers=sum(guard.refused for guard in guards),
        refused=sum(sender.subscriptions.admission.refused for sender in senders),
        peers=peers.shown,
        other_peers=peers.others,
        subscriptions=peers.subscriptions,
        slices=slices,
        datagrams=sum(caster.state.datagrams for caster in casters),
        datagrams_failed=sum(caster.state.failed for caster in casters),
    )


def _of_slice(sender: SliceSender) -> PublisherSlice:
    sent = sender.sent
    return PublisherSlice(
        slice_id=sender.slice_id,
        epoch=sent.epoch,
        sequence=sent.sequence,
        messages=sent.messages,
        blocks=sent.blocks,
        body_bytes=sent.body_bytes,
        unwanted=sent.unwanted,
        waits=sent.waits,
        shared_memory_dropped=sent.shared_memory_dropped,
        discarded=sent.discarded,
        topics=len(sender.topics.ids),
        subscribers=sender.subscriptions.subscriber_count(),
    )
