"""Fixtures that every test may use."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.databases", "tests.execs"]


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, which is what the product runs on."""
    return "asyncio"
