# SPDX-License-Identifier: Apache-2.0
"""The HTTP API of a Prometheus server, or of anything that answers as one.

Raw samples are asked for (a range selector), with the times of the scrapes: a range query would repeat a last value for
up to five minutes where scrapes are missing.
"""

import http.client
import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from slurm_colloc.core.errors import InputError

TOKEN_VARIABLE = "COLLOC_PROMETHEUS_TOKEN"  # noqa: S105 - the variable's name
_ANSWER_TIMEOUT_S = 60.0
_ANSWER_LIMIT_BYTES = 512 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024

Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]


class Server:
    """A Prometheus server, or that part of its series which has the labels ``match`` (as in ``cluster="a"``)."""

    def __init__(self, url: str, match: str = "", token: str = "", timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        try:
            parts = urlsplit(url)
            fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            fine = None
        # A password in the address would end up in errors and logs.
        if not fine or parts.query or parts.fragment or parts.username is not None:
            raise InputError(
                "a Prometheus address is like 'http://host:9090', with a path at most; "
                f"a token goes into ${TOKEN_VARIABLE}"
            )
        if not re.fullmatch(r"[\x21-\x7e]*", token):
            raise InputError(f"the token in ${TOKEN_VARIABLE} holds blanks or letters that no header can")
        self.url = url.rstrip("/")
        self._match = match
        self._token = token
        self._timeout_s = timeout_s

    def names(self, wanted: Collection[str], since_s: float, until_s: float) -> frozenset[str]:
        """Return which of the metrics ``wanted`` it has in [since, until).

        Raises:
            InputError: no answer, or one that is not of the expected form.
        """
        selector = f'{{__name__=~"{"|".join(wanted)}",{self._match}}}'
        query = {"match[]": selector, "start": f"{since_s:.3f}", "end": f"{until_s:.3f}"}
        return frozenset(parse_names(self._ask("label/__name__/values", query))) & frozenset(wanted)

    def samples(self, metric: str, since_s: float, until_s: float) -> tuple[Series, ...]:
        """Return the raw samples of ``metric`` in [since, until).

        Raises:
            InputError: no answer, or one that is not of the expected form.
        """
        # Prometheus 2 includes both ends of a range and Prometheus 3 one: a second more is asked for, and cut here.
        span_s = math.ceil(until_s - since_s) + 1
        text = self._ask("query", {"query": f"{metric}{{{self._match}}}[{span_s}s]", "time": f"{until_s:.3f}"})
        return tuple(
            (labels, [point for point in points if since_s <= point[0] < until_s])
            for labels, points in parse_series(text)
        )

    def _ask(self, path: str, query: Mapping[str, str]) -> str:
        request = urllib.request.Request(f"{self.url}/api/v1/{path}?{urlencode(query)}")  # noqa: S310 - see __init__
        if self._token:
            # The token is for this server and not for another that it redirects to.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        question = f"Prometheus at '{self.url}', asked for {query.get('query', 'the names of its metrics')},"
        deadline_s = time.monotonic() + self._timeout_s
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:  # noqa: S310
                return _read(answer, question, deadline_s)
        except urllib.error.HTTPError as error:
            hint = f"; put a token into ${TOKEN_VARIABLE}" if error.code in (401, 403) else ""
            raise InputError(f"{question} answered {error.code} {error.reason}: {_said(error)}{hint}") from error
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", None) or error
            raise InputError(f"{question} did not answer: {cause}; is it up, and reachable from here?") from error


def _said(error: urllib.error.HTTPError) -> str:
    """Return how the body of an error begins; it may stall, too."""
    try:
        with error:
            return cast(http.client.HTTPResponse, error.fp).read1(500).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return "without saying why"


def _read(answer: http.client.HTTPResponse, question: str, deadline_s: float) -> str:
    """Return the whole answer within its time; the connection's own time-out begins anew with each byte."""
    parts: list[bytes] = []
    size = 0
    while chunk := answer.read1(_CHUNK_BYTES):
        parts.append(chunk)
        size += len(chunk)
        if size > _ANSWER_LIMIT_BYTES:
            raise InputError(f"{question} answered with more than {_ANSWER_LIMIT_BYTES >> 20} MiB for an hour")
        if time.monotonic() > deadline_s:
            raise InputError(f"{question} did not end its answer in time; is it busy?")
    return b"".join(parts).decode(errors="replace")


def parse_names(text: str) -> tuple[str, ...]:
    """Return the values of a label from an answer of ``/api/v1/label/<name>/values``.

    Raises:
        InputError: it is not the expected JSON.
    """
    data = _data(text)
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise InputError("the answer holds no list of names; is this the address of a Prometheus server?")
    return tuple(data)


def parse_series(text: str) -> tuple[Series, ...]:
    """Return labels and points (time in epoch seconds, value) of each series in an answer of ``/api/v1/query``.

    Raises:
        InputError: it is not the expected JSON, or no range of samples.
    """
    data = _data(text)
    try:
        if data["resultType"] != "matrix":
            raise ValueError(f"it holds a {data['resultType']}")
        return tuple(
            (
                {str(name): str(value) for name, value in series["metric"].items()},
                [(float(at_s), float(value)) for at_s, value in series.get("values", ())],
            )
            for series in data["result"]
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"the answer is not of the form of Prometheus' range of samples: {error!r}") from error


def _data(text: str) -> Any:
    try:
        answer = json.loads(text)
        if answer["status"] != "success":
            raise InputError(f"Prometheus refused: {answer.get('error', 'it says no reason')}")
        return answer["data"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"the answer is not of the form of Prometheus: {error!r}; is this the address of a server?"
        ) from error
