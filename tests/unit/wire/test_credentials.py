"""Placeholders of credentials, and which values can be used."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellback.exec.wire.credentials import Credential, Unusable, is_placeholder, known_values, placeholder, usable

VALUES = st.text(string.ascii_letters + string.digits + "_-./+=", min_size=12, max_size=300)


@given(VALUES)
def test_a_placeholder_has_the_shape_of_the_value_and_nothing_else_of_it(value: str) -> None:
    try:
        usable(value)
    except Unusable:
        return
    found = placeholder("seed", value)
    assert found != value
    assert [char if not char.isalnum() else "x" for char in found] == [
        char if not char.isalnum() else "x" for char in value
    ]
    assert found == placeholder("seed", value)
    assert is_placeholder("seed", found)
    assert not is_placeholder("other", found)
    for kind in (str.isdigit, str.islower, str.isupper):
        assert any(map(kind, value)) or not any(map(kind, found))


def test_another_value_of_the_same_shape_has_the_same_placeholder() -> None:
    """So nothing of the value is in it, except its shape."""
    one, other = "ghp_abcDEF123456", "ghp_zzzZZZ999999"
    assert placeholder("seed", one) == placeholder("seed", other)
    assert placeholder("seed", one) != placeholder("other", one)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ("ghp_0123456789abcdefABCDEF", r"ghp_[0-9a-zA-Z]{22}"),
        ("sk-ant-abc-0123456789", r"sk-ant-[0-9a-z]{3}-[0-9a-z]{10}"),
        ("00ff00ff-00ff00ff", r"[0-9a-f]{8}-[0-9a-f]{8}"),
        ("12345678", r"[0-9]{8}"),
        ("github_pat_1", r"[a-z0-9]{6}_[a-z0-9]{3}_[a-z0-9]"),
    ],
)
def test_known_prefixes_signs_and_kinds_stay(value: str, shape: str) -> None:
    assert re.fullmatch(shape, placeholder("seed", value))


@pytest.mark.parametrize(
    "value", ["short", "--------------", "two\nlines12345678", " blank12345678", "bücher12345678", "a" * 8193, ""]
)
def test_a_value_that_cannot_be_used_is_refused_without_a_word_of_it(value: str) -> None:
    with pytest.raises(Unusable) as refused:
        usable(value)
    assert not value or value not in str(refused.value)


def test_a_credential_goes_over_the_wire_without_its_value_and_shows_none() -> None:
    one = Credential(name="hub", hosts=("a.example",), variable="HUB_TOKEN", value="a-secret-0123456789")
    assert Credential.from_wire(one.to_wire()) == one
    assert "a-secret" not in one.to_wire() + repr(one) + one.shown


def test_known_values_are_those_that_can_be_had(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("in-a-file-0123456789\n")
    found = known_values([
        Credential(name="a", hosts=(), value="a-secret-0123456789"),
        Credential(name="b", hosts=(), file=str(tmp_path / "token")),
        Credential(name="c", hosts=(), file=str(tmp_path / "none")),
    ])  # fmt: skip
    assert found == {"a": "a-secret-0123456789", "b": "in-a-file-0123456789"}
