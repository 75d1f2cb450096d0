"""Bounds the requests to a model, and words its failures for the conversation."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import httpx2
from pydantic_ai import RunContext
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

WAIT_MAX_S: Final = 30.0
"""After a request to wait longer than this, the turn ends with an error."""
RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""The most that is read of one response."""
_SHOWN_CHARS: Final = 300
_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
# What the providers' clients raise for an answer that they cannot parse.
_RUBBISH: Final = (UnexpectedModelBehavior, ValueError, TypeError, AttributeError, LookupError)


class EndpointError(ModelAPIError):
    """Raised when an endpoint gave no response. The message is for the conversation and holds no secret.

    `passing` says whether a retry may succeed, `retry_after` after how many seconds. Both survive pickling, in
    `body` and `retry_after`.
    """

    def __init__(self, model_name: str, message: str, *, passing: bool = False, wait_s: float | None = None) -> None:
        super().__init__(model_name, message, body={"passing": passing}, retry_after=wait_s)

    @property
    def passing(self) -> bool:
        """Whether to retry, at once or after at most `WAIT_MAX_S`."""
        about = cast("dict[str, bool]", self.body or {})
        return about["passing"] and (self.retry_after or 0.0) <= WAIT_MAX_S


class Endpoint(WrapperModel):
    """Bounds each request to `seconds`, and raises every failure as an `EndpointError`.

    The turn retries requests, so the provider's client does not; prompt caching is on. Settings of the agent or the
    model override both.
    """

    def __init__(self, wrapped: Model, *, seconds: float) -> None:
        super().__init__(wrapped)
        self._seconds = seconds
        self._not_before = 0.0
        for one in _models(wrapped):
            _bound_responses(one)

    @property
    def settings(self) -> ModelSettings | None:
        """The model's settings over our defaults."""
        return cast("ModelSettings", {**_defaults(self.wrapped), **(self.wrapped.settings or {})})

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Request a whole response."""
        await self._asked_to_wait()
        try:
            async with asyncio.timeout(self._seconds):
                return await super().request(messages, model_settings, model_request_parameters)
        except self._failures as error:
            raise self._said(error) from None

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Request a streamed response; the timeout is for all of it."""
        await self._asked_to_wait()
        try:
            async with (
                asyncio.timeout(self._seconds),
                super().request_stream(messages, model_settings, model_request_parameters, run_context) as response,
            ):
                yield response
        except self._failures as error:
            raise self._said(error) from None

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        # A model without an address is a function: an error in it is a bug, and stays visible.
        return (ModelAPIError, TimeoutError, *(() if self.base_url is None else _RUBBISH))

    async def _asked_to_wait(self) -> None:
        left = self._not_before - time.monotonic()
        if 0 < left <= WAIT_MAX_S:
            await asyncio.sleep(left)

    def _said(self, error: Exception) -> EndpointError:
        if isinstance(error, EndpointError):
            return error
        text, passing, wait_s = self._told(error)
        for secret in _secrets(self.wrapped):
            text = text.replace(secret, "***")
        if wait_s is not None:
            # Every turn of this worker waits: the endpoint counts them together.
            self._not_before = time.monotonic() + wait_s
        return EndpointError(self.model_name, text, passing=passing, wait_s=wait_s)

    def _told(self, error: Exception) -> tuple[str, bool, float | None]:
        """Cause and remedy; whether a retry may succeed; seconds to wait before it."""
        where = _shown(self.base_url) or self.system
        if isinstance(error, TimeoutError | ModelRequestTimeout):
            cause = f"{where} had not answered in full after {self._seconds:g} s (MODEL_TIMEOUT)"
            return f"{cause}. Check that it is well, or raise MODEL_TIMEOUT. Write again to retry.", True, None
        if isinstance(error, ModelRequestRejectedError | ModelQuotaExceededError):
            return self._refused(where, error), False, None
        if isinstance(error, ModelAPIError):
            status = error.status_code if isinstance(error, ModelHTTPError) else 0
            return _failed(where, error), not 400 <= status < 429, error.retry_after
        cause = f"the answer of {where} cannot be parsed ({type(error).__name__}: {_words(error)})"
        return f"{cause}. Check that it speaks the protocol that MODEL names.", True, None

    def _refused(self, where: str, error: ModelRequestRejectedError | ModelQuotaExceededError) -> str:
        match error:
            case ModelAuthenticationError():
                key = _KEYS.get(self.system, "the key of this provider")
                remedy = f"Check {key} where the worker runs and restart it"
                return f"{where} refused the key. {remedy}. Write again to retry."
            case ModelQuotaExceededError():
                return f"the quota at {where} is used up: {_words(error)}. Write again when there is more."
            case ModelNotFoundError():
                remedy = "Check MODEL, and that the address ends as the provider says (mostly in /v1)"
                return f"{where} does not know {self.model_name!r}, or not this path. {remedy}."
            case ModelContextWindowExceededError():
                return "this conversation is longer than the model can read. Go on in another one."
            case _:
                return f"{where} refused the request: {_words(error)}."


def _failed(where: str, error: ModelAPIError) -> str:
    match error:
        case ModelRateLimitError():
            when = f"in {error.retry_after:.0f} s" if error.retry_after is not None else "in a few minutes"
            return f"{where} limits how often it may be asked. Write again {when}."
        case ModelConnectionError():
            cause = f"{where} cannot be reached, or cut the connection ({_words(error)})"
            return f"{cause}. Check that it runs and that its address is right. Write again to retry."
        case ModelHTTPError():
            return f"{where} failed with status {error.status_code}: {_words(error)}. Write again later."
        case _:
            return f"{where} failed: {_words(error)}. Write again later."


def _defaults(model: Model) -> dict[str, Any]:
    # A model without an address is not asked over a network.
    if model.base_url is None:
        return {}
    once = {} if "max_retries" in model.unsupported_settings else {"max_retries": 0}
    return {"cache": True, **once}


def _words(error: Exception) -> str:
    """The beginning of the endpoint's own message."""
    body = error.body if isinstance(error, ModelAPIError) else None
    said = _message(body) if body is not None else str(error)
    return " ".join(said.split())[:_SHOWN_CHARS].rstrip(".") or type(error).__name__


def _message(body: object) -> str:
    if isinstance(body, dict):
        held = cast("dict[str, object]", body)
        inner = held.get("error", held.get("message"))
        return _message(inner) if inner is not None else str(held)
    return str(body)


def _shown(url: str | None) -> str:
    """An address without user, password and query."""
    if not url:
        return ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _models(model: Model) -> Iterator[Model]:
    """This model and those inside it."""
    yield model
    for one in [*getattr(model, "models", []), getattr(model, "wrapped", None)]:
        if isinstance(one, Model):
            yield from _models(cast("Model", one))


def _secrets(model: Model) -> Iterator[str]:
    """Every key this model, or one inside it, sends."""
    for one in _models(model):
        client = getattr(one, "client", None)
        for name in ("api_key", "auth_token"):
            secret = getattr(client, name, None)
            if isinstance(secret, str) and len(secret) >= 8:
                yield secret
        parts = urlsplit(one.base_url or "")
        if parts.password:
            yield parts.password
            yield b64encode(unquote(f"{parts.username}:{parts.password}").encode()).decode()


def _bound_responses(model: Model) -> None:
    http = getattr(getattr(model, "client", None), "_client", None)
    host = urlsplit(model.base_url or "").hostname
    if not isinstance(http, httpx2.AsyncClient):
        return

    async def bound(response: httpx2.Response) -> None:
        # The operator may use the same client for other hosts.
        if response.request.url.host == host and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream)

    http.event_hooks = {**http.event_hooks, "response": [*http.event_hooks["response"], bound]}


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = RESPONSE_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise ValueError(f"more than {RESPONSE_BYTES // 1024**2} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
