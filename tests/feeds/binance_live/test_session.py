"""Requests of a WebSocket client: each has an answer, in Binance's form."""

from __future__ import annotations

import json

from blackbox_feeds.binance.server.session import Session
from hypothesis import given
from hypothesis import strategies as st

from tests.feeds.binance_live.test_server import compact


@given(
    st.binary(max_size=80) | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(compact)
)
def test_any_request_has_an_answer(text: bytes) -> None:
    session = Session(["a@trade"], is_combined=True)
    assert set(json.loads(session.answer(text))) & {"error", "result"}


def test_requests_and_faults_have_binances_form() -> None:
    session = Session.of_path("/ws/a@trade/b@trade")
    assert session is not None
    for request, answer in (
        ('{"method":"LIST_SUBSCRIPTIONS","id":3}', '{"result":["a@trade","b@trade"],"id":3}'),
        ('{"method":"SUBSCRIBE","params":["c@depth"],"id":null}', '{"result":null,"id":null}'),
        ('{"method":"UNSUBSCRIBE","params":["a@trade"],"id":-1}', '{"result":null,"id":-1}'),
        ('{"method":"LIST_SUBSCRIPTIONS","id":"x1"}', '{"result":["b@trade","c@depth"],"id":"x1"}'),
        ('{"method":"GET_PROPERTY","params":["combined"],"id":4}', '{"result":false,"id":4}'),
        ('{"method":"SET_PROPERTY","params":["combined",true],"id":4}', '{"result":null,"id":4}'),
        ('{"method":"GET_PROPERTY","params":["combined"],"id":5}', '{"result":true,"id":5}'),
        ('{"method":"GET_PROPERTY","params":["speed"],"id":5}', '{"error":{"code":0,"msg":"Unknown property"},"id":5}'),
    ):
        assert session.answer(request.encode()).decode() == answer
    assert json.loads(session.answer(b"{"))["error"]["code"] == 3
    many = {"method": "SUBSCRIBE", "params": [f"x{n}@trade" for n in range(1_024)], "id": 1}
    assert json.loads(session.answer(compact(many)))["error"]["code"] == 2
    long = {"method": "SUBSCRIBE", "params": ["x" * 257], "id": 1}
    assert json.loads(session.answer(compact(long)))["error"]["code"] == 2
    assert Session.of_path("/api/v3/depth") is None
    assert Session.of_path("/stream?streams=" + "/".join(f"x{n}@trade" for n in range(1_025))) is None
