# SPDX-License-Identifier: Apache-2.0
"""What is asked of a Prometheus server, and what becomes of its answers, good and bad."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest

from slurm_colloc.core.config import Observe
from slurm_colloc.core.errors import InputError
from slurm_colloc.facts.compact import Compacted, compact
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.sources import prometheus_server
from slurm_colloc.sources.prometheus_server import Server
from slurm_colloc.store.ingest import keep_history
from slurm_colloc.store.store import Store
from tests.fakes.http_server import Answer, Asked, Fake, fake_server
from tests.unit.golden import Printed
from tests.unit.made import HOUR, device, process, seen
from tests.unit.stored import sampled


@pytest.fixture
def fake() -> Iterator[Fake]:
    with fake_server() as server:
        server.status = 404
        yield server


def data(value: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps({"status": "success", "data": value}).encode()


def test_raw_samples_are_asked_for_and_cut_to_the_window(fake: Fake) -> None:
    points = [[99.999, "1"], [100, "2"], [199.999, "3"], [200, "4"]]
    fake.answer = lambda _: data({"resultType": "matrix", "result": [{"metric": {"a": "b"}, "values": points}]})
    samples = Server(f"{fake.url}/prometheus/", match='cluster="c"').samples("m", 100.0, 200.0)
    assert samples == (({"a": "b"}, [(100.0, 2.0), (199.999, 3.0)]),)
    # A second more than the window: one end of a range is open in Prometheus 3.
    query = {"query": 'm{cluster="c"}[101s]', "time": "200.000"}
    assert fake.asked == [Asked("/prometheus/api/v1/query", query, None)]


def test_only_names_that_were_asked_for(fake: Fake) -> None:
    fake.answer = lambda _: data(["a", "other"])
    assert Server(fake.url).names(["a", "b"], 1.0, 2.0) == {"a"}
    assert fake.asked[0].query == {"match[]": '{__name__=~"a|b",}', "start": "1.000", "end": "2.000"}


def test_the_token_goes_to_the_server_and_to_nobody_it_redirects_to(fake: Fake) -> None:
    with fake_server() as other:
        other.answer = lambda _: data([])
        fake.answer = lambda asked: (302, {"Location": f"{other.url}/there"}, b"")
        assert Server(fake.url, token="s3cret").names(["a"], 1.0, 2.0) == frozenset()
        assert [asked.token for asked in fake.asked] == ["Bearer s3cret"]
        assert [asked.token for asked in other.asked] == [None]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {}, b"no"), r"answered 401 Unauthorized: no; put a token into \$COLLOC_PROMETHEUS_TOKEN"),
        ((422, {}, b'{"error":"too many samples"}'), "answered 422 .*too many samples"),
        ((200, {}, b"<html>hello"), "not of the form of Prometheus"),
        ((200, {}, b"\xff\xfe"), "not of the form of Prometheus"),
        ((200, {"Content-Length": "100"}, b"{}"), "not of the form of Prometheus"),
    ],
)
def test_an_answer_that_is_none(fake: Fake, answer: Answer, said: str) -> None:
    fake.answer = lambda _: answer
    with pytest.raises(InputError, match=said) as error:
        Server(fake.url, token="s3cret").samples("m", 1.0, 2.0)
    assert "s3cret" not in str(error.value)


def test_nobody_there(printed: Printed) -> None:
    with fake_server() as fake:
        pass
    with pytest.raises(InputError, match=f"'{fake.url}'") as raised:
        Server(fake.url).samples("m", 1.0, 2.0)
    printed("ingest", str(raised.value).replace(fake.url, "http://h:9090"))


def test_an_error_whose_text_stalls(printed: Printed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stalling:
        gone = Event()

        def serve() -> None:
            connection, _ = stalling.accept()
            with connection:
                connection.recv(9999)
                connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 500\r\n\r\n")
                gone.wait()

        thread = Thread(target=serve)
        thread.start()
        try:
            url = f"http://127.0.0.1:{stalling.getsockname()[1]}"
            with pytest.raises(InputError, match=" 500 No: ") as raised:
                Server(url, timeout_s=0.2).samples("m", 1.0, 2.0)
            printed("ingest", str(raised.value).replace(url, "http://h:9090"))
        finally:
            gone.set()
            thread.join()


def test_an_answer_without_end(fake: Fake, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    fake.answer = lambda _: (200, {}, b"x" * 100)
    with monkeypatch.context() as patched:
        patched.setattr(prometheus_server, "_ANSWER_LIMIT_BYTES", 99)
        with pytest.raises(InputError, match="answered with more than"):
            Server(fake.url).samples("m", 1.0, 2.0)
    with printed.raises("ingest", InputError):
        prometheus_server._read(_Slow(), "it", deadline_s=0.0)  # type: ignore[arg-type]


class _Slow:
    def read1(self, _: int) -> bytes:
        return b"x"


def test_ingest_again_changes_nothing_and_what_a_server_forgot_stays(fake: Fake, tmp_path: Any) -> None:
    first = 5 * HOUR

    def answer(asked: Asked, since_s: float = 0.0) -> Answer:
        if asked.path.endswith("/values"):
            return data(["DCGM_FI_PROF_SM_ACTIVE"])
        end_s = int(float(asked.query["time"]))
        points = [[at_s, "0.5"] for at_s in range(end_s - HOUR, end_s, 600) if at_s >= since_s]
        labels = {"UUID": "GPU-a", "Hostname": "g1", "hpc_job": "7"}
        return data({"resultType": "matrix", "result": [{"metric": labels, "values": points}] if points else []})

    def rows() -> list[tuple[Any, ...]]:
        with Store(str(tmp_path)).connect() as connection:
            return connection.execute(
                "SELECT at_s, interval_s, job_id, sm_active_pct, method FROM shares ORDER BY ALL"
            ).fetchall()

    fake.answer = answer
    for _ in range(2):
        # Half an hour of the first: the whole hour is taken, so that it can be written whole.
        counted = keep_history(
            Store(str(tmp_path)), Server(fake.url), "c", first + 1800, first + HOUR + 1, attribute_sample
        )
        assert (counted.rows_in, counted.used, counted.rejected) == (12, 12, {})
    before = rows()
    assert before[:2] == [(first, 600.0, "", 0.0, "unattributed"), (first, 600.0, "7", 50.0, "whole device")]
    assert len(before) == 24
    fake.answer = lambda asked: answer(asked, since_s=first + HOUR)
    keep_history(Store(str(tmp_path)), Server(fake.url), "c", first, first + 2 * HOUR, attribute_sample)
    assert rows() == before


def scraped_at(times: list[int]) -> Callable[[Asked], Answer]:
    """Return the answers of a server that has scraped GPU-a on g1 at these times."""

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/values"):
            return data(["DCGM_FI_PROF_SM_ACTIVE"])
        end_s = int(float(asked.query["time"]))
        points = [[at_s, "0.5"] for at_s in times if end_s - HOUR <= at_s < end_s]
        labels = {"UUID": "GPU-a", "Hostname": "g1", "hpc_job": "7"}
        return data({"resultType": "matrix", "result": [{"metric": labels, "values": points}] if points else []})

    return answer


@pytest.mark.parametrize("age_days", [2, 20])
def test_what_a_later_import_knows_more_is_taken(fake: Fake, tmp_path: Any, age_days: int) -> None:
    store, times = Store(str(tmp_path)), [600, 1200]

    def take_in() -> Compacted:
        fake.answer = scraped_at(times)
        keep_history(store, Server(fake.url), "c", 0, HOUR, attribute_sample)
        done = compact(store, Observe(), 86_400.0 * (1 + age_days) + 1, anyway=True)
        assert done
        return done

    def rows() -> list[tuple[Any, ...]]:
        return store.rows("SELECT at_s FROM shares WHERE job_id = '7' ORDER BY ALL", {})

    take_in()
    assert take_in().refused == (), "the same again is no news"
    times += [1800]
    assert (take_in().refused, len(rows())) == ((), 3)


@pytest.mark.parametrize("known", [{"node": "g1"}, {"node": "g1-ib"}])
def test_an_hour_that_an_agent_sampled_is_not_taken_twice(
    fake: Fake, tmp_path: Any, known: dict[str, str], printed: Printed
) -> None:
    store = Store(str(tmp_path))
    sampled(store, [seen(1200, [device("GPU-a")], [process("7", uuid="GPU-a")], **known)])  # type: ignore[arg-type]
    before = store.rows("SELECT * FROM shares ORDER BY ALL", {})
    fake.answer = scraped_at([600, 1200, HOUR + 600, HOUR + 1200])
    counted = keep_history(store, Server(fake.url), "c", 0, 2 * HOUR, attribute_sample)
    assert counted.used == 2
    assert list(counted.rejected.values()) == [2]
    printed("ingest", *counted.rejected)
    assert store.rows(f"SELECT * FROM shares WHERE at_s <= {HOUR} ORDER BY ALL", {}) == before
