"""The queue of a client, compared with a list that keeps everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blackbox.services.bridge.websocket.client_queue import ClientQueue


@given(st.lists(st.tuples(st.sampled_from((b"A", b"B", b"C")), st.booleans())), st.integers(1, 6), st.integers(1, 20))
def test_all_while_there_is_room_then_the_newest_of_each_topic(
    came: list[tuple[bytes, bool]], limit: int, most_bytes: int
) -> None:
    """Each message is its number, which reveals omissions; the client takes the queue at random times."""
    waiting, since, taken = ClientQueue(limit, most_bytes), list[tuple[bytes, bytes]](), list[bytes]()
    passed_over = 0
    for number, (topic, takes) in enumerate([*came, (b"A", True)]):
        text = b"%d" % number
        waiting.add(topic, text)
        since.append((topic, text))
        if takes:
            texts, lost = waiting.take()
            size = sum(len(each) for _, each in since)
            if len(since) <= limit and size <= most_bytes:
                assert (texts, lost) == ([each for _, each in since], 0)
            else:
                assert set(texts) <= set(dict(since).values())
                assert texts == sorted(texts, key=int)
                assert texts[-1] == text
                assert len(texts) <= limit
                assert len(texts) == 1 or sum(map(len, texts)) <= most_bytes
                assert len(texts) + lost == len(since)
            taken += texts
            passed_over += lost
            since.clear()
    assert len(taken) + passed_over == len(came) + 1


def test_with_room_for_all_topics_the_newest_of_each_arrives() -> None:
    waiting = ClientQueue(3, 100)
    for number in range(10):
        waiting.add(b"ABC"[number % 3 : number % 3 + 1], b"%d" % number)
    waiting.lose(5)
    assert waiting.take() == ([b"7", b"8", b"9"], 12)
    assert waiting.take() == ([], 0)
