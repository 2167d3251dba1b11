# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server on this machine that answers as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, dict[str, str], bytes]


class Asked(NamedTuple):
    path: str
    query: dict[str, str]
    token: str | None


class Fake:
    """A server that answers with its text, or as ``answer`` says, and remembers what it was asked."""

    def __init__(self, url: str) -> None:
        self.url, self.status, self.text = url, 200, ""
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Answer] = lambda asked: (self.status, {}, self.text.encode())


@contextmanager
def fake_server() -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            asked = Asked(parts.path, query, self.headers["Authorization"])
            fake.asked.append(asked)
            status, headers, body = fake.answer(asked)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        fake = Fake(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield fake
        server.shutdown()
        thread.join()
