"""Rules name each fault from statuses and heartbeats, raise nothing near a limit, and clear by themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from blackbox.cli.watch.tables import TABS, details, rows_of
from blackbox.documents import DecodeError
from blackbox.receive.alerts import Alert
from blackbox.services.monitor.heartbeats import LineState
from blackbox.services.monitor.serve.status import ProcessStatus, SliceDetail, decode_statuses
from blackbox.services.monitor.watch.conditions import MOST_CONDITIONS, Condition, Conditions, Finding, finding_of
from blackbox.services.monitor.watch.snapshot import Page
from blackbox.services.monitor.watch.view import View, view_of
from tests.monitor.stories import START_NS, S, Story, growing, received, status

LATE_NS = 1_500_000_000
CALM_S = 65


def relay(*gaps: int, path: tuple[str, ...] = ("london",), pid: int = 7) -> list[ProcessStatus]:
    lines = [{"slice_id": 0, "line": "A", "source": "tcp://a:1", "path": path, "gaps": each} for each in gaps]
    return [status("relay", {"lines": [each]}, pid=pid) for each in lines]


def sender(role: str = "publisher", *values: dict[str, Any]) -> list[ProcessStatus]:
    return [status(role, {"waits": 0, "peers": [], "other_peers": 0, "refused_peers": 0, **each}) for each in values]


def peers(count: int, **last: Any) -> dict[str, Any]:
    return {"peers": [*[{"behind_s": 0.0}] * (count - 1), {"address": "10.0.0.9:5", "unsent_bytes": 9, **last}]}


def clogged(delivered: int) -> ProcessStatus:
    return status("subscriber", received(lag_last_ns=LATE_NS, delivery_delivered=delivered, delivery_queue_blocks=4))


FAULTS: dict[str, tuple[str, list[ProcessStatus], str]] = {
    "lag with a full worker queue": (
        "slow_callback",
        [*growing(*[{"lag_last_ns": LATE_NS, "delivery_queue_blocks": 16}] * 3)],
        "lags 1.50 s, limit 1.00 s, and 16 blocks wait for callbacks",
    ),
    "a full worker queue that stops the receiver": (
        "slow_callback",
        [clogged(number) for number in range(4)],
        "lags 1.50 s, limit 1.00 s, and 4 blocks wait for callbacks",
    ),
    "a callback that does not return": (
        "slow_callback",
        [status("subscriber", received(delivery_queue_blocks=3))] * 4,
        "3 blocks wait and no callback has returned for 3 s",
    ),
    "lag without waiting blocks": (
        "late_blocks",
        [*growing(*[{"lag_last_ns": LATE_NS}] * 3)],
        "lags 1.50 s, limit 1.00 s",
    ),
    "age without lag": (
        "late_publisher",
        [*growing(*[{"lag_last_age_ns": 2 * LATE_NS}] * 3)],
        "messages waited 3.00 s in the publisher of quotes before they were sent, limit 1.00 s",
    ),
    "a clock step": (
        "clock_step",
        [*growing({}, {"lag_clock_steps": 1, "lag_clock_offset_ns": -10 * S})],
        "1 clock step, here or at the publisher; its clock is now 10.0 s late",
    ),
    "lost messages": ("gap", [*growing({}, {"received_gaps": 5})], "5 messages lost on the way to it, 5 in all"),
    "loss above a relay": (
        "loss_above_relay",
        relay(0, 40),
        "40 messages lost above relay 'london', on line A of slice 0 from tcp://a:1",
    ),
    "waits": ("full_queue", sender("publisher", {}, {"waits": 49}, {"waits": 98}), "wait 98% of the time for a"),
    "a peer that reads nothing": (
        "full_queue",
        sender("relay", *[peers(3, behind_s=2.5)] * 3),
        "the subscriber at 10.0.0.9:5 has taken next to nothing for 2.5 s, 9 B wait for it",
    ),
    "a crowd": ("crowd_of_peers", sender("publisher", peers(11)), "it has 11 connections, limit 10"),
    "a crowd beyond those that are listed": (
        "crowd_of_peers",
        sender("relay", {**peers(2), "other_peers": 100}),
        "it has 102 connections, limit 10",
    ),
    "a wrong key": (
        "wrong_key",
        sender("archive", {}, {"refused_peers": 2}),
        "2 connections refused because of a wrong or missing key",
    ),
    "a harmful peer": ("harmful_peer", sender("publisher", {"put_out": 0}, {"put_out": 1}), "1 peer disconnected"),
    "a disk that fills": (
        "full_disk",
        [status("recorder", {"free_bytes": 400 << 20, "stored_bytes": n * (10 << 20)}) for n in range(4)],
        "the disk of its recording has 419.4 MB left, enough for 40 s",
    ),
    "a full disk": (
        "full_disk",
        [status("recorder", {}, healthy=False, reasons=("a.journal: No space left on device.",))],
        "No space left on device",
    ),
    "lost records": ("disk_error", [status("recorder", {"lost": n}) for n in (0, 3)], "3 received messages not"),
    "dropped messages": (
        "dropped_messages",
        [*growing({}, {"delivery_dropped": 2})],
        "its policy for slow subscribers dropped 2 deliveries",
    ),
    "an unhealthy part": (
        "unhealthy",
        [status("hub", healthy=False, reasons=("The hub has worked on the same request for 31 s.",))],
        "The hub has worked on the same request",
    ),
    "a part that does not become ready": (
        "not_ready",
        [status("bridge", ready=False, reasons=("redis://x is unreachable.",))] * 12,
        "redis://x is unreachable.",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_once_and_clears(name: str) -> None:
    kind, statuses, why = FAULTS[name]
    story = Story()
    story.calm(msgspec.structs.replace(statuses[0], healthy=True, ready=True, statistics=received()), 3)
    assert story.raised == []
    assert story.see(*statuses) == [kind]
    (condition,) = story.conditions.now
    assert why in condition.why
    who = "publisher of quotes" if kind == "late_publisher" else f"{statuses[0].role} 7 on desk"
    assert (condition.who, condition.feed) == (who, "quotes")
    seen_s = (START_NS + story.at_ns - condition.since_ns) / S
    assert 0 < seen_s <= len(statuses) + 3
    story.calm(msgspec.structs.replace(statuses[-1], healthy=True, ready=True, statistics=received()), CALM_S)
    assert [each.kind for each in story.cleared] == [kind]
    assert (story.kinds, len(story.raised)) == ([], 1)


NEAR: dict[str, list[ProcessStatus]] = {
    "lag below its limit": [*growing(*[{"lag_last_ns": 900_000_000, "delivery_queue_blocks": 16}] * 4)],
    "lag for one status": [*growing({}, {"lag_last_ns": LATE_NS}, {}, {"lag_last_ns": LATE_NS}, {})],
    "old lag of an idle feed": [status("subscriber", received(lag_last_ns=LATE_NS))] * 1,
    "age below its limit": [*growing(*[{"lag_last_age_ns": 900_000_000}] * 4)],
    "some waits": sender("publisher", *[{"waits": 20 * n} for n in range(6)]),
    "a peer that is slow for a moment": sender("publisher", *[peers(3, behind_s=1.0)] * 4),
    "as many peers as allowed": sender("publisher", *[peers(10)] * 3),
    "a restarted process": [
        status("subscriber", received(received_gaps=50)),
        status("subscriber", received(received_gaps=90), pid=8),
    ],
    "a large disk": [status("recorder", {"free_bytes": 900 << 20, "stored_bytes": n * (10 << 20)}) for n in range(4)],
    "not ready while it starts": [status("subscriber", ready=False, reasons=("it is compiling",))] * 9,
    "figures that are no numbers": [
        status(
            "subscriber", {"received": [1], "lag": {"clock_steps": "many"}, "peers": "x", "lines": [1, {"path": 2}]}
        ),
        status("subscriber", {"received": None, "lag": 7, "peers": [5], "other_peers": True, "lines": [{"gaps": "9"}]}),
    ],
}


@pytest.mark.parametrize("name", NEAR)
def test_nothing_is_raised_near_a_limit(name: str) -> None:
    story = Story()
    story.see(*NEAR[name])
    story.look()
    assert story.raised == []


@pytest.mark.parametrize(
    ("role", "failure", "after_s", "kind"),
    [
        ("archive", "refused", 2, "dead_archive"),
        ("subscriber", "refused", 2, "lost_consumer"),
        ("relay", "refused", 2, "dead_relay"),
        ("hub", "silent", 3, "stuck_hub"),
        ("subscriber", "silent", 3, "stuck_subscriber"),
        ("recorder", "invalid", 3, "unhealthy"),
        ("recorder", "unreachable", 3, "unreachable"),
    ],
)
def test_a_process_without_an_answer_is_named_by_its_role(role: str, failure: Any, after_s: int, kind: str) -> None:
    story = Story()
    story.see(status(role))
    story.fail(failure, "no answer")
    assert [story.look() for _ in range(after_s)] == [[]] * (after_s - 1) + [[kind]]
    what = "given no status" if failure == "invalid" else "not answered"
    assert f"http://desk:9300 has {what} for {after_s}.0 s: no answer" in story.raised[0].why
    assert story.raised[0].since_ns == START_NS + 1_000 * S  # of the last answer
    story.see(status(role))
    story.calm(status(role), 5)
    assert (story.kinds, len(story.raised)) == ([], 1)


def test_a_page_that_never_answered_is_named_by_its_address() -> None:
    story = Story()
    story.fail("refused", "Connection refused")
    for _ in range(3):
        story.look()
    assert story.kinds == ["unreachable"]
    assert "http://desk:9300 has not answered for 2.0 s: Connection refused" in story.raised[0].why
    assert (story.raised[0].who, story.raised[0].since_ns) == ("http://desk:9300", START_NS + story.began_ns)
    named = Story()
    named.pages["http://desk:9300"] = Page("http://desk:9300", name="recorder")
    named.fail("refused", "Connection refused")
    for _ in range(3):
        named.look()
    assert [(each.kind, each.who) for each in named.raised] == [("unreachable", "recorder")]
    (row,) = view_of(named.installation, named.conditions.now).processes
    assert (row.label, row.state, row.reasons) == ("recorder", "refused", ("Connection refused",))


def test_lines_that_fall_silent_and_feeds_that_were_never_heard() -> None:
    story = Story()
    story.look()
    story.lines[1].state, story.lines[1].last_heard_ns = LineState.SILENT, START_NS + story.at_ns - 3 * S
    assert story.look() == ["silent_line"]
    (condition,) = story.raised
    assert condition.who == "line B of quotes slice 0"
    assert condition.why == "no heartbeat for 3.0 s, expected one every 1.00 s"
    assert condition.where == "feed quotes slice 0 at tcp://127.0.0.1:17202"
    assert condition.since_ns == story.lines[1].last_heard_ns
    story.lines[1].state = LineState.ALIVE
    story.calm(status("publisher"), 5)
    assert story.kinds == []
    story.lines[0].state = LineState.NOT_HEARD
    assert story.look() == ["silent_line"]
    never = Story()
    for line in never.lines:
        line.state = LineState.NOT_HEARD
    assert [never.look() for _ in range(6)] == [[]] * 5 + [["late_publisher"]]
    assert (never.raised[0].who, never.raised[0].since_ns) == ("publisher of quotes", START_NS + never.began_ns)
    late = Story()
    late.lines[0].heartbeat_lag_ns = LATE_NS
    assert [late.look() for _ in range(4)] == [[], [], [], ["late_publisher"]]
    assert "arrive 1.50 s after they were sent" in late.raised[0].why


def test_loss_is_named_at_the_first_relay_that_misses_messages() -> None:
    story = Story()
    chain = [("london",), ("london", "desk"), ("paris",)]
    for gaps in ((0, 0, 0), (9, 9, 0)):
        for place, (path, lost) in enumerate(zip(chain, gaps, strict=True)):
            story.answer(*relay(lost, path=path, pid=place), url=f"http://desk:{place}")
        of_slices = {"slices": [{"slice_id": 0, "received": {"gaps": gaps[1]}}]}
        story.answer(status("subscriber", received(received_gaps=gaps[1]) | of_slices, pid=9), url="http://desk:9")
        story.look()
    assert [(each.kind, each.who) for each in story.conditions.now] == [("loss_above_relay", "relay 0 on desk")]


def test_a_loss_hides_none_of_another_slice_or_feed() -> None:
    story = Story()
    for lost in (0, 9):
        for place, (feed, slice_id, path) in enumerate(
            (("quotes", 0, ("london",)), ("quotes", 1, ("london", "desk")), ("trades", 0, ("london", "desk")))
        ):
            line = {"slice_id": slice_id, "line": "A", "source": "tcp://a:1", "path": path, "gaps": lost}
            story.answer(status("relay", {"lines": [line]}, pid=place, feed=feed), url=f"http://desk:{place}")
        story.look()
    assert [each.who for each in story.conditions.now] == [f"relay {place} on desk" for place in range(3)]


def with_numbers(values: Any, number: float) -> Any:
    """Return statistics with another number everywhere."""
    if isinstance(values, dict):
        return {name: with_numbers(each, number) for name, each in values.items()}
    if isinstance(values, list):
        return [with_numbers(each, number) for each in values]
    return number if isinstance(values, int | float) else values


@pytest.mark.parametrize(
    "number", [1e300, -1e300, 10**400, -(10**400), 2**63 - 1, 1 - 2**63], ids=lambda each: str(each)[:5]
)
def test_huge_numbers_of_a_status_end_nothing(number: float) -> None:
    story, one = Story(), {"slice_id": 0, **received()}
    line = {"slice_id": 0, "line": "A", "source": "tcp://a:1", "path": ["a"], "gaps": 1, "waits": 1}
    peer = {"address": "10.0.0.9:5", "behind_s": 1, "unsent_bytes": 1, "since_ns": 1, "slice_id": 1, "refused": 1}
    counters = dict.fromkeys(("waits", "lost", "missing", "free_bytes", "stored_bytes", "put_out", "clients"), 1)
    values = {**one, "slices": [one], "lines": [line], "peers": [peer], **counters}
    for each in (0, number, 0, number):
        found = with_numbers(values, each)
        found["slices"][0]["slice_id"] = 0
        story.see(status("subscriber", found), status("hub", {**found, "received": None}))
    view = view_of(story.installation, story.conditions.now)
    assert msgspec.json.decode(msgspec.json.encode(view), type=View).processes
    for tab in TABS:
        for row in rows_of(tab, view, sort=1):
            assert all(isinstance(column.cell(row), str) for column in tab.columns)
            assert details(row)
    assert all(each.since_ns >= 0 for each in story.raised)


@pytest.mark.parametrize("depth", [0, 100_000])
def test_lists_of_a_status_in_place_of_text_end_nothing(depth: int) -> None:
    story, lists = Story(), list[Any]()
    for _ in range(depth):
        lists = [lists]
    peer = {"address": lists, "line": lists, "key": lists, "behind_s": 9}
    for lost in (0, 1):
        line = {"slice_id": 0, "line": lists, "source": lists, "path": lists, "gaps": lost}
        story.see(status("relay", {"lines": [line, line | {"path": ["a"]}], "peers": [peer]}))
    assert story.kinds == ["loss_above_relay"]
    (row,) = view_of(story.installation, story.conditions.now).peers
    assert (row.address, row.line, row.key) == ("", "", "")


@pytest.mark.parametrize("name", ["started_ns", "now_ns", "since_ns"])
@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_status_with_an_impossible_time_is_invalid(name: str, number: int) -> None:
    def decode(time_ns: int) -> int:
        return len(decode_statuses(msgspec.json.encode([status("hub", None, **{name: time_ns})])))

    assert decode(2**63 - 1) == 1
    with pytest.raises(DecodeError, match=name):
        decode(number)


def test_what_another_condition_explains_is_left_out() -> None:
    story = Story()
    story.see(status("hub"))
    story.lines[0].state = story.lines[1].state = LineState.SILENT
    story.fail("silent", "no answer in 1.5 s")
    for _ in range(4):
        story.look()
    assert story.kinds == ["stuck_hub"]
    assert [each.kind for each in story.raised] == ["silent_line"] * 2 + ["stuck_hub"]
    for _ in range(5):
        story.look()
    assert (story.kinds, story.cleared) == (["stuck_hub"], [])  # the lines are still silent
    story.calm(status("hub"), 5)
    assert story.kinds == ["silent_line"] * 2
    assert len(story.raised) == 3
    for line in story.lines:
        line.state = LineState.ALIVE
    story.calm(status("hub"), 5)
    assert (story.kinds, len(story.raised)) == ([], 3)
    assert sorted(each.kind for each in story.cleared) == ["silent_line", "silent_line", "stuck_hub"]


def waiting(seconds: range, slice_id: int = 0) -> list[ProcessStatus]:
    """Return statuses of a publisher of two slices: this one waits for a peer all the time."""
    slices = [[{"slice_id": each, "waits": 50 * n * (each == slice_id)} for each in (0, 1)] for n in seconds]
    return sender("publisher", *({"slices": each} for each in slices))


def test_a_full_queue_explains_the_silent_lines_of_its_slice_only() -> None:
    story = Story()
    story.see(*waiting(range(3)))
    for line in story.lines:
        line.state = LineState.SILENT
    assert story.see(*waiting(range(3, 6))) == ["full_queue"]
    assert [each.kind for each in story.raised] == ["full_queue"]
    other = Story()
    other.see(*waiting(range(3), slice_id=1))
    other.lines[0].state = LineState.SILENT
    assert other.see(*waiting(range(3, 4), slice_id=1)) == ["silent_line", "full_queue"]


def test_not_ready_is_left_out_only_if_all_its_reasons_are_explained() -> None:
    def part(role: str, *reasons: str, slices: tuple[int, ...] = ()) -> ProcessStatus:
        details = tuple(SliceDetail(slice_id=each, reason="nothing comes") for each in slices)
        texts = (*reasons, *(f"Slice {each}: nothing comes." for each in slices))
        return status(role, ready=False, reasons=texts, slices=details)

    story = Story()
    for line in story.lines:
        line.state, line.last_heard_ns = LineState.SILENT, START_NS
    parts = {
        "subscriber": part("subscriber", slices=(0,)),
        "recorder": part("recorder", "A sync of days has been due for 9 s.", slices=(0,)),
        "relay": part("relay", slices=(0, 1)),
        "bridge": part("bridge", "redis://x is unreachable."),
    }
    for _ in range(12):
        for name, each in parts.items():
            story.answer(each, url=f"http://{name}:1")
        story.look()
    unready = {each.who.split()[0] for each in story.conditions.now if each.kind == "not_ready"}
    assert unready == {"recorder", "relay", "bridge"}


def test_a_state_that_began_before_the_watch_has_its_own_time() -> None:
    story = Story()
    now_ns = 5_000 * S  # by a clock that is wrong
    story.answer(status("bridge", ready=False, reasons=("x.",), now_ns=now_ns, since_ns=now_ns - 60 * S))
    assert story.look() == ["not_ready"]  # at once: it has lasted for longer than ten seconds
    assert story.raised[0].since_ns == START_NS + story.began_ns - 60 * S


def test_the_process_behind_an_address_is_named() -> None:
    story = Story()
    at = SliceDetail(slice_id=0, addresses=("10.0.0.9:5", "127.0.0.1:7"))
    story.answer(status("subscriber", slices=(at,), host="laptop", pid=42), url="http://laptop:1")
    story.see(*sender("relay", *[peers(1, behind_s=2.5)] * 3))
    assert story.raised[0].why.startswith("subscriber 42 on laptop at 10.0.0.9:5 has taken next to nothing for 2.5 s")
    now = story.installation
    assert now.process_at("127.0.0.1:7", "laptop") == "subscriber 42 on laptop"
    assert now.process_at("127.0.0.1:7", "desk") == ""  # that of another host
    assert now.process_at("[::ffff:10.0.0.9]:5", "desk") == "subscriber 42 on laptop"
    story.answer(status("subscriber", slices=(at,), host="copy"), url="http://copy:1")
    story.look()
    assert now.process_at("10.0.0.9:5", "desk") == ""  # two have it: behind a translation of addresses


def alert(**changes: Any) -> Alert:
    fields: dict[str, Any] = {"kind": "slow_callback", "severity": "warning", "feed": "quotes", "slice_id": 1}
    fields |= {"host": "desk", "pid": 7, "role": "subscriber", "text": "slow", "since_ns": 5}
    return Alert(**(fields | changes))


def test_an_alert_and_a_finding_about_one_process_are_one_condition() -> None:
    conditions = Conditions()
    found = finding_of(alert())
    by_rule = Finding("slow_callback", "warning", "subscriber 7 on desk", "quotes", "feed quotes", "it lags")
    assert len(conditions.look([found, by_rule], S, START_NS).raised) == 1
    (condition,) = conditions.now
    assert (condition.since_ns, condition.why) == (5, "it lags")
    assert conditions.look([finding_of(alert(severity="error", kind="full_disk"))], 4 * S, START_NS).cleared == []
    assert [each.kind for each in conditions.now] == ["full_disk", "slow_callback"]
    assert [each.kind for each in conditions.look([], 10 * S, START_NS).cleared] == ["slow_callback"]
    assert [each.kind for each in conditions.look([], 65 * S, START_NS).cleared] == ["full_disk"]


def test_texts_of_others_cannot_control_a_terminal_and_their_number_is_bounded() -> None:
    conditions = Conditions()
    conditions.look([finding_of(alert(text="\x1b[2Jbad\n", host="a\r"))], S, START_NS)
    (condition,) = conditions.now
    assert (condition.why, condition.who) == ("?[2Jbad?", "subscriber 7 on a?")
    many = [finding_of(alert(pid=pid)) for pid in range(2 * MOST_CONDITIONS)]
    assert len(conditions.look(many, S, START_NS).raised) == MOST_CONDITIONS - 1
    assert conditions.left_out == MOST_CONDITIONS + 1


def test_restored_conditions_continue_or_clear() -> None:
    conditions = Conditions()
    kept = Condition(
        kind="slow_callback",
        severity="warning",
        who="subscriber 7 on desk",
        feed="quotes",
        where="",
        why="",
        since_ns=3,
    )
    conditions.restore([kept, msgspec.structs.replace(kept, who="other")], S)
    assert conditions.look([finding_of(alert())], 2 * S, START_NS) == ([], [])
    assert {each.since_ns for each in conditions.now} == {3}
    assert [each.who for each in conditions.look([finding_of(alert())], 20 * S, START_NS).cleared] == ["other"]
