"""The metrics: one rule for each field of each statistics object.

A rule is a metric, a label of the object's other metrics, `INSIDE` for objects to descend into, `Total` for sums that
are exported only if an object has too many parts, or `Left` with the reason for leaving a field out. Names follow the
conventions of Prometheus: base units, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

MOST_PARTS: Final = 256
"""Slices or lines of one object that are exported one by one; of more only the sums."""


class Metric(NamedTuple):
    """A counter or a gauge. Its help text is the field's docstring, unless `help` is given."""

    name: str
    kind: Literal["counter", "gauge"]
    scale: float = 1.0
    """Factor from the field's unit to the metric's."""
    help: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    by: str = ""
    """Label for the keys of a dict field; or for a text field, and the value is 1."""
    unknown: int | None = None
    """Value that is not exported, because it means unknown."""
    merge: Literal["sum", "max"] = "sum"
    """How values with equal labels become one, as those of two connections over ipc."""


class Label(NamedTuple):
    """A label of the object's other metrics."""

    name: str


class Inside(NamedTuple):
    """Descend into an object, or into each of a tuple. `is_parts`: these are the slices or lines of the object."""

    is_parts: bool = False


class Total(NamedTuple):
    """A sum over the parts. It is exported only if there are more than MOST_PARTS."""

    rule: Metric | Inside = Inside()


class Left(NamedTuple):
    """A field that is not exported."""

    why: str


Rule = Metric | Label | Inside | Total | Left
INSIDE: Final = Inside()
PARTS: Final = Inside(is_parts=True)
SUM: Final = Total()
_TEXT: Final = Left("a text, which is in the status")
_NS: Final = 1e-9


def _count(name: str, text: str = "", by: str = "") -> Metric:
    return Metric(name, "counter", help=text, by=by)


def _level(name: str, text: str = "", by: str = "") -> Metric:
    return Metric(name, "gauge", help=text, by=by)


def _time(name: str, text: str = "", merge: Literal["sum", "max"] = "sum") -> Metric:
    return Metric(name, "gauge", _NS, help=text, merge=merge)


def _quantile(of: str, quantile: str) -> Metric:
    text = f"Quantile of the {of} of messages since the start; 1: the largest."
    return Metric(f"subscriber_{of}_quantile_seconds", "gauge", _NS, text, (("quantile", quantile),), merge="max")


_PEERS: Final[Mapping[str, Rule]] = {
    "peers": INSIDE,
    "other_peers": _level("{}_unlisted_peers", "Further connections, without metrics of their own."),
    "subscriptions": _level("{}_subscriptions"),
    "put_out": _count("{}_disconnected_peers"),
    "refused_peers": _count("{}_refused_peers"),
}


def _peers_of(prefix: str) -> dict[str, Rule]:
    """Return the rules for the peers of a publisher or relay."""
    return {
        field: rule._replace(name=rule.name.format(prefix)) if isinstance(rule, Metric) else rule
        for field, rule in _PEERS.items()
    }


_SENT: Final[Mapping[str, Metric]] = {
    "messages": _count("publisher_messages"),
    "blocks": _count("publisher_blocks"),
    "body_bytes": _count("publisher_body_bytes"),
    "unwanted": _count("publisher_unwanted_messages"),
    "waits": _count("publisher_waits"),
    "shared_memory_dropped": _count("publisher_shared_memory_dropped_messages"),
    "discarded": _count("publisher_discarded_messages"),
    "topics": _level("publisher_topics"),
    "subscribers": _level("publisher_subscribers"),
}

TABLE: Final[Mapping[str, Mapping[str, Rule]]] = {
    "PublisherStatistics": {
        **{field: Total(rule) for field, rule in _SENT.items()},
        **_peers_of("publisher"),
        "recorders": INSIDE,
        "refused": _count("publisher_refused_subscriptions"),
        "slices": PARTS,
        "datagrams": _count("publisher_datagrams"),
        "datagrams_failed": _count("publisher_failed_datagrams"),
    },
    "PublisherSlice": {
        **_SENT,
        "slice_id": Label("slice"),
        "epoch": _time("publisher_epoch_timestamp_seconds", "Time at which the epoch began, seconds since 1970."),
        "sequence": _level("publisher_next_sequence"),
    },
    "PeerStatistics": {
        "slice_id": Label("slice"),
        "line": Label("line"),
        "address": Label("peer"),
        "key": Label("key"),
        "since_ns": _time("peer_subscribed_timestamp_seconds", "Time of its first subscription.", merge="max"),
        "subscriptions": _level("peer_subscriptions"),
        "refused": _count("peer_refused_subscriptions"),
        "taken_bytes": _count("peer_taken_bytes"),
        "unsent_bytes": _level("peer_unsent_bytes"),
        "behind_s": Metric("peer_behind_seconds", "gauge", merge="max"),
        "age_s": Metric("peer_age_seconds", "gauge", merge="max"),
        "dropped_blocks": _count("peer_dropped_blocks"),
        "how_sure": Left("it changes, and each value of a label would begin another series"),
        "lost_messages": _count("peer_lost_messages"),
        "is_tap": _level("peer_is_tap"),
    },
    "RecorderPosition": {
        "slice_id": Label("slice"),
        "recorder": Label("recorder"),
        "epoch": Left("the same as the slice's epoch"),
        "sent": _level("publisher_recorder_sent_sequence"),
        "begin": _level("publisher_recorder_first_sequence"),
        "recorded": _level("publisher_recorder_recorded_sequence"),
        "synced": _level("publisher_recorder_synced_sequence"),
        "lacks": _TEXT,
        "is_connected": _level("publisher_recorder_connected", "1 while the recorder is connected."),
    },
    "Statistics": {"received": SUM, "delivery": SUM, "lag": SUM, "slices": PARTS},
    "SliceStatistics": {"slice_id": Label("slice"), "received": INSIDE, "delivery": INSIDE, "lag": INSIDE},
    "ReceivedStatistics": {
        "messages": _count("subscriber_messages"),
        "blocks": _count("subscriber_blocks"),
        "body_bytes": _count("subscriber_body_bytes"),
        "control_blocks": _count("subscriber_control_blocks"),
        "ended_connections": _count("subscriber_ended_connections"),
        "malformed": _count("subscriber_malformed_blocks"),
        "faults": _count("subscriber_block_faults", "Malformed blocks by fault.", by="fault"),
        "gaps": _count("subscriber_lost_messages", "Messages lost: their sequences did not arrive."),
        "repaired": _count("subscriber_repaired_messages"),
        "let_go": _count("subscriber_let_go_messages", "Live messages that archives delivered instead."),
        "catching_up": _level("subscriber_catching_up_slices"),
        "duplicates": _count("subscriber_duplicate_messages"),
        "stale": _count("subscriber_stale_messages"),
        "implausible": _count("subscriber_implausible_messages"),
        "untracked": _count("subscriber_untracked_messages"),
        "epochs": _count("subscriber_epochs"),
        "held": _level("subscriber_held_blocks"),
        "subscriptions": _level("subscriber_filters"),
        "transport": _TEXT,
        "last_ns": _time("subscriber_last_received_timestamp_seconds", merge="max"),
        "datagrams": INSIDE,
    },
    "DatagramStatistics": {
        "datagrams": _count("subscriber_datagrams"),
        "parts": _count("subscriber_part_datagrams"),
        "malformed": _count("subscriber_malformed_datagrams"),
        "unauthentic": _count("subscriber_unauthentic_datagrams"),
        "foreign": _count("subscriber_foreign_datagrams"),
        "stale": _count("subscriber_stale_datagrams"),
        "repeated": _count("subscriber_repeated_datagrams"),
        "blocks": _count("subscriber_datagram_blocks"),
        "incomplete": _count("subscriber_incomplete_blocks"),
        "unwanted": _count("subscriber_unwanted_blocks"),
        "dropped": _count("subscriber_dropped_datagrams"),
    },
    "DeliveryStatistics": {
        "matched": _count("subscriber_matched_messages"),
        "due": _count("subscriber_due_deliveries"),
        "delivered": _count("subscriber_deliveries"),
        "failed": _count("subscriber_failed_deliveries"),
        "misfits": _count("subscriber_misfit_deliveries"),
        "dropped": _count("subscriber_dropped_deliveries"),
        "conflated": _count("subscriber_conflated_deliveries"),
        "discarded": _count("subscriber_discarded_deliveries"),
        "callback_errors": _count("subscriber_callback_errors"),
        "queue_blocks": _level("subscriber_queue_blocks"),
        "waits": _count("subscriber_queue_waits"),
        "topics": _level("subscriber_topics"),
        "unnumbered": _count("subscriber_unnumbered_blocks"),
    },
    "LagStatistics": {
        "last_ns": _time("subscriber_last_lag_seconds", merge="max"),
        "last_age_ns": _time("subscriber_last_age_seconds", merge="max"),
        "p50_ns": _quantile("lag", "0.5"),
        "p99_ns": _quantile("lag", "0.99"),
        "max_ns": _quantile("lag", "1"),
        "age_p50_ns": _quantile("age", "0.5"),
        "age_p99_ns": _quantile("age", "0.99"),
        "age_max_ns": _quantile("age", "1"),
        "slow_blocks": _count("subscriber_slow_blocks"),
        "negative": _count("subscriber_negative_lag_blocks"),
        "clock_offset_ns": _time("subscriber_clock_offset_seconds"),
        "clock_steps": _count("subscriber_clock_steps"),
    },
    "RecorderStatistics": {
        "messages": _count("recorder_messages"),
        "blocks": _count("recorder_blocks"),
        "stored_bytes": _count("recorder_stored_bytes"),
        "lost": _count("recorder_lost_messages"),
        "unheard": _count("recorder_unheard_messages"),
        "cut_bytes": _count("recorder_cut_bytes"),
        "segments": _count("recorder_segments"),
        "free_bytes": _level("recorder_free_bytes")._replace(unknown=-1),
        "received": SUM,
        "lag": SUM,
        "slices": PARTS,
    },
    "ArchiveStatistics": {
        "answered": _count("archive_answered_requests"),
        "refused": _count("archive_refused_requests"),
        "dropped": _count("archive_dropped_requests"),
        "disconnected": _count("archive_disconnected_readers"),
        "refused_peers": _count("archive_refused_peers"),
    },
    "RelayStatistics": {
        **_peers_of("relay"),
        "messages": Total(_count("relay_messages", "Messages forwarded.")),
        "blocks": Total(_count("relay_blocks", "Blocks forwarded.")),
        "body_bytes": Total(_count("relay_body_bytes", "Bytes of the bodies forwarded.")),
        "waits": Total(_count("relay_waits", "Times that it waited for a slow subscriber.")),
        "refused": Total(_count("relay_refused_messages", "Messages that were not blocks.")),
        "faults": Total(_count("relay_faulty_blocks", "Blocks with an unreadable header.")),
        "unwanted": Total(_count("relay_unwanted_messages", "Messages of keys that no filter covers.")),
        "shared_memory_dropped": _count("relay_shared_memory_dropped_messages"),
        "subscribers": _level("relay_subscribers"),
        "refused_below": _count("relay_refused_subscriptions"),
        "datagrams": _count("relay_datagrams"),
        "datagrams_failed": _count("relay_failed_datagrams"),
        "hops": _level("relay_hops"),
        "images": INSIDE,
        "lines": PARTS,
    },
    "RelayLine": {
        "slice_id": Label("slice"),
        "line": Label("line"),
        "source": _TEXT,
        "transport": _TEXT,
        "is_connected": _level("relay_line_connected", "1 while the line is connected to its source."),
        "is_confirmed": _level("relay_line_confirmed"),
        "reconnects": _count("relay_line_reconnects"),
        "epoch": _time("relay_line_epoch_timestamp_seconds", "Time at which the forwarded epoch began."),
        "path": _TEXT,
        "messages": _count("relay_messages", "Messages forwarded."),
        "blocks": _count("relay_blocks", "Blocks forwarded."),
        "body_bytes": _count("relay_body_bytes", "Bytes of the bodies forwarded."),
        "heartbeats": _count("relay_heartbeats", "Heartbeats of the source."),
        "waits": _count("relay_waits", "Times that it waited for a slow subscriber."),
        "refused": _count("relay_refused_messages", "Messages that were not blocks."),
        "faults": _count("relay_faulty_blocks", "Blocks with an unreadable header."),
        "unwanted": _count("relay_unwanted_messages", "Messages of keys that no filter covers."),
        "gaps": _count("relay_lost_messages"),
        "keys": _level("relay_keys"),
        "filters_below": _level("relay_filters_below"),
        "filters_above": _level("relay_filters_above"),
    },
    "PlainStatistics": {
        "messages": _count("plain_relay_messages"),
        "full": _count("plain_relay_dropped_messages"),
        "source": INSIDE,
    },
    "HubStatistics": {
        "stored": _count("hub_stored_puts"),
        "known": _count("hub_known_puts"),
        "refused": _count("hub_refused_puts"),
        "conflicts": _count("hub_conflicting_puts"),
        "ended": _count("hub_expired_topics"),
        "unread": _count("hub_unread_answers"),
        "life": _level("hub_state", "1 for the hub's state in its pair.", by="state"),
        "term": _level("hub_term"),
        "peer_lacks": _level("hub_peer_lacks_turns")._replace(unknown=-1),
    },
    "CarrierStatistics": {
        "added": _count("bridge_added_messages"),
        "known": _count("bridge_known_messages"),
        "missing": _count("bridge_lost_messages"),
    },
    "BridgeStatistics": {
        "clients": _level("bridge_clients"),
        "prefixes": _level("bridge_prefixes"),
        "sent": _count("bridge_sent_messages"),
        "passed_over": _count("bridge_dropped_messages"),
        "refused": _count("bridge_refused_clients"),
    },
    "InletStatistics": {
        "clients": _level("bridge_clients"),
        "put": _count("bridge_put_messages"),
        "failed": _count("bridge_failed_requests"),
        "refused": _count("bridge_refused_clients"),
    },
    "Inlet": {
        "messages put": _count("bridge_put_messages", "Messages that the hub has stored."),
        "messages published": _count("bridge_published_messages", "Messages published."),
        "unwanted": _count("bridge_unwanted_messages", "Messages of other topics."),
        "refused": _count("bridge_refused_messages", "Messages that the feed cannot have."),
        "told missing": _count("bridge_lost_messages", "Messages lost at the source."),
        "times away": _count("bridge_outages", "Times that the other system was unreachable."),
    },
    "ReplayStatistics": {
        "messages": _count("replay_messages"),
        "blocks": _count("replay_blocks"),
        "body_bytes": _count("replay_body_bytes"),
        "seconds": Left("known only after the end"),
        "market_seconds": _count("replay_market_seconds"),
        "damaged": _count("replay_damaged_messages"),
        "late": _count("replay_late_messages"),
        "misplaced": _count("replay_misplaced_messages"),
    },
    "LiveStatistics": {
        "messages": _count("source_messages"),
        "packets": _count("source_packets"),
        "bytes": _count("source_bytes"),
        "gaps": _count("source_gaps"),
        "missing": _count("source_lost_messages"),
        "recovered": _count("source_recovered_messages"),
        "duplicates": _count("source_duplicate_messages"),
        "reconnects": _count("source_reconnects"),
        "kernel_drops": _count("source_kernel_dropped_datagrams"),
        "malformed": _count("source_malformed_packets"),
        "foreign": _count("source_foreign_datagrams"),
        "stale": _count("source_silences"),
        "connected": _level("source_connected"),
        "delay_p50_ns": Metric(
            "source_delay_quantile_seconds",
            "gauge",
            _NS,
            "Quantile of the delay from the venue's time since the start.",
            (("quantile", "0.5"),),
            merge="max",
        ),
        "delay_p99_ns": Metric(
            "source_delay_quantile_seconds",
            "gauge",
            _NS,
            "Quantile of the delay from the venue's time since the start.",
            (("quantile", "0.99"),),
            merge="max",
        ),
    },
}
"""By class name of the statistics object, then by field."""

HISTOGRAMS: Final[Mapping[str, str]] = {
    "lag": "Lag of messages at delivery.",
    "age": "Age of messages at delivery, that of a block's oldest message.",
    "hop": "Time of traced messages from one hop to the next, such as 'send to receive'.",
}
"""Histograms of a subscriber, `subscriber_NAME_seconds`, with their help texts."""
OF_ALL: Final[Mapping[str, str]] = {
    "ready": "1 if the part does its work now.",
    "healthy": "0 if the part has failed or makes no progress.",
    "info": "Always 1. Version of the process.",
    "slice_ready": "1 if the slice is ready.",
    "slice_silence_seconds": "Time since the last message or heartbeat of a publisher.",
}
"""Metrics of the status of every part, with their help texts."""
