"""Models behind a network: each protocol through the whole loop, and every way in which an endpoint can fail."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
from pydantic_ai import Agent

from examples.model_server import Json, ModelServer
from shellback.agent.builtin import choose_model
from shellback.agent.endpoint import Endpoint, EndpointError
from tests.commands import shellback
from tests.otlp import serving
from tests.stage import Stage, stage

MARK = {"type": "ephemeral", "ttl": "5m"}
KEY = "sk-a-key-that-nobody-may-read"


@contextmanager
def modelled() -> Generator[ModelServer]:
    with serving(server := ModelServer()):
        yield server


def without_marks(value: Any) -> Any:
    """A request without the marks that say where the cache ends: they move, what is cached does not."""
    if isinstance(value, dict):
        held = cast("Json", value)
        return {name: without_marks(held[name]) for name in held if name != "cache_control"}
    return [without_marks(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def conversation_of(request: Json) -> list[Any]:
    return without_marks(request.get("messages", request.get("input")))


def assert_each_begins_with_the_one_before(requests: list[Json]) -> None:
    """What a provider caches: tools and instructions never change, what was said only grows at its end."""
    for before, after in pairwise(requests):
        for name in ("tools", "system", "instructions"):
            assert without_marks(before.get(name)) == without_marks(after.get(name))
        said, now = conversation_of(before), conversation_of(after)
        assert now[: len(said)] == said
        assert len(now) > len(said)


def test_the_loop_goes_through_a_server_without_a_key() -> None:
    with ThreadPoolExecutor(2) as pool:
        openai = pool.submit(asked_in_a_round, "openai:stand-in", "/v1")
        anthropic = pool.submit(asked_in_a_round, "anthropic:claude-sonnet-4-5", "")
        openai.result()
        for request in anthropic.result():
            assert request["tools"][-1]["cache_control"] == MARK
            assert MARK in [block.get("cache_control") for block in request["system"]]
            assert request["cache_control"] == MARK


def asked_in_a_round(model: str, url_ends: str) -> list[Json]:
    with modelled() as server, stage(None, MODEL=model, MODEL_BASE_URL=server.url + url_ends) as place:
        place.hire()
        go_round(place, server)
        return server.log.requests


def go_round(place: Stage, server: ModelServer) -> None:
    """A call, its approval, a process in the background, its wake, an answer."""
    item = place.send("$ until [ -e go ]; do sleep 0.05; done; echo made; exit 3 &")
    place.approve()
    session = place.session("echo made")
    # Else the turn that has started it might hear of its end, and there would be no wake.
    place.answer(item)
    (place.workspace / "go").touch()
    wake = place.ended(f"EXEC_CALLBACK:{session.id}")
    place.until("the end is told", lambda: "exit" in "\n".join(place.answers()))
    assert "made" in "\n".join(place.answers()), wake
    assert "thank you" in place.ended(place.send("thank you"))["answer"]
    requests = [request for request in server.log.requests if "echo made" in json.dumps(conversation_of(request))]
    assert len(requests) >= 4
    assert all(request["stream"] for request in requests)
    assert "execute" in json.dumps(requests[0]["tools"])
    assert_each_begins_with_the_one_before(requests)


FAILURES = {
    "hang:30": (3, "had not answered in full after 2 s (MODEL_TIMEOUT)"),
    "drip:2": (3, "had not answered in full after 2 s (MODEL_TIMEOUT)"),
    "page": (3, "cannot be parsed"),
    "rubbish": (3, "failed: Failed to decode"),
    "cut": (3, "cut the connection"),
    "500": (3, "failed with status 500"),
    "503:1": (3, "failed with status 503"),
    "429:1": (3, "limits how often it may be asked. Write again in 1 s"),
    "429:900": (1, "limits how often it may be asked. Write again in 900 s"),
    "401": (1, "refused the key. Check OPENAI_API_KEY where the worker runs"),
    "404": (1, "does not know 'stand-in'"),
    "400": (1, "refused the request: status 400 for Bearer ***"),
}
"""What goes wrong, how often it is tried in all, and what the answer says."""


def test_an_endpoint_that_fails_is_asked_again_within_a_budget_and_then_the_answer_says_what_to_do() -> None:
    with modelled() as server:
        asked: Counter[str] = Counter()

        def fault(body: Json) -> str:
            word = str(body["messages"][-1]["content"]).partition("please ")[2]
            asked[word] += 1
            return "" if word == "500 once" and asked[word] > 1 else word.partition(" ")[0]

        server.log.fault = fault
        with stage(
            None,
            MODEL="openai-chat:stand-in",
            MODEL_BASE_URL=f"{server.url}/v1",
            OPENAI_API_KEY=KEY,
            MODEL_TIMEOUT="2",
            TURN_SLOTS="16",
            LOG_LEVEL="DEBUG",
        ) as place:
            place.hire()
            items = {word: place.send(f"please {word}", f"f{n}") for n, word in enumerate([*FAILURES, "500 once"])}
            go_round(place, server)
            answers = {word: place.ended(item)["answer"] for word, item in items.items()}
            for word, (times, told) in FAILURES.items():
                assert told in answers[word]
                assert server.url in answers[word]
                assert asked[word] == times, word
            assert "please 500 once" in answers["500 once"]
            # What failed is in the conversation, and said; it goes on from there.
            assert "go on" in place.ended(place.send("go on", "f0"))["answer"]
            told = json.dumps(server.log.requests[-1])
            assert "please hang" in told
            assert "could not answer" in told
            said = (place.home / "worker.log").read_text() + shellback(place, "doctor", "--json").stdout + str(answers)
        assert all(headers["authorization"] == f"Bearer {KEY}" for headers in server.log.headers)
    assert "retried" in said
    assert KEY not in said


@pytest.mark.anyio
@pytest.mark.parametrize("model", ["openai:m", "anthropic:m"])
async def test_a_secret_that_an_endpoint_repeats_is_taken_out(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with modelled() as server:
        server.log.fault = lambda _body: "500"
        for url in (server.url, server.url.replace("://", "://someone:password-in-an-address@")):
            endpoint = Endpoint(choose_model(model, base_url=url), seconds=30)
            with pytest.raises(EndpointError, match=r"status 500 for .*\*\*\*") as caught:
                async with Agent(endpoint) as agent:
                    await agent.run("hello")
            told = repr(caught.value) + str(pickle.dumps(caught.value)) + str(caught.value.__cause__)
            for secret in (KEY, "password-in-an-address", "c29tZW9uZTpwYXNzd29yZC1pbi1hbi1hZGRyZXNz"):
                assert secret not in told
        assert "Basic c29t" in str(server.log.headers)
        # The provider's own client asked once each: whoever runs the turn asks again.
        assert len(server.log.requests) == 2
        server.log.fault = lambda _body: ""
        monkeypatch.setattr("shellback.agent.endpoint.RESPONSE_BYTES", 500)
        with pytest.raises(EndpointError, match=r"ValueError: more than|cut the connection"):
            async with Agent(Endpoint(choose_model(model, base_url=server.url), seconds=30)) as agent:
                await agent.run("hello")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    endpoint = Endpoint(choose_model(model, base_url=server.url), seconds=30)
    with pytest.raises(EndpointError, match=rf"^{server.url} cannot be reached.*Check that it runs"):
        async with Agent(endpoint) as agent:
            await agent.run("hello")
