"""Requests are sent, and servers started, by every rank."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World

_REQUESTS = (
    "requests.get",
    "requests.post",
    "requests.put",
    "urllib.request.urlopen",
    "urllib.request.Request",
    "httpx.get",
    "httpx.post",
    "http.server.HTTPServer",
    "socketserver.TCPServer",
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find requests and servers of a training script."""
    for call in facts.calls(*_REQUESTS):
        yield Finding(
            call,
            f"{brief(facts, call)} goes out",
            "it is sent or served by every rank, N times in all",
            "Fetch it once, before the job starts.",
        )


RULE = Rule("DDP218", "request", "A request is sent by every rank", find, (World.PLAIN, World.DDP_PATCH))
