"""The shapes of tokens that are secrets wherever they stand.

Source: what the issuers say about the form of their tokens, compared with the rules of detect-secrets 1.5.0;
November 2026. That library itself reads line by line, at 0.02 MB/s, and marks words by their entropy.
A shape has a fixed beginning and a length, so that other text does not have it. A token without either is no shape.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 8192
"""A token is seen as a whole up to this number of bytes."""

_KEY_LINES: Final = r"(?:PRIVATE|[A-Z0-9]{2,10} PRIVATE|ENCRYPTED PRIVATE|OPENSSH PRIVATE) KEY(?: BLOCK)?-----"

# What stands in a key: diffs put "-" or "+" before its lines, and JSON writes their ends as `\\n`.
_KEY: Final = r"(?:-{0,4}[A-Za-z0-9+/=\s\\:,.()]|-{5,}[AC-Za-z0-9+/=\s\\:,.()])"
_ROW: Final = r"[A-Za-z0-9+/]{32}[A-Za-z0-9+/=]*"
# Between its rows: ends of lines, indents, what diffs put there, and numbers.
_GAP: Final = r"[\s\\rn+-]{1,40}(?:\d{1,6}[:\s-]\s?)?"
_HEADERS: Final = rf"(?:{_GAP}[A-Z][A-Za-z-]{{2,20}}: [^\n\\]{{1,100}})*"
_LAST_ROW: Final = rf"(?:{_GAP}[A-Za-z0-9+/=]+(?:(?m:$)|\\[rn]))?"

SHAPES: Final[dict[str, str]] = {
    "aws-key-id": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    "github-token": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{60,}",
    "gitlab-token": r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-[A-Za-z0-9_-]{20,}(?:\.[a-z0-9]{2}\.[a-z0-9]{9})?",
    "slack-token": r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}|\bxapp-\d-[A-Za-z0-9-]{20,}"
    r"|\bhooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{24,}",
    "stripe-key": r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{20,}|\bwhsec_[A-Za-z0-9+/]{32,}",
    "google-key": r"\bAIza[A-Za-z0-9_-]{35}|\bGOCSPX-[A-Za-z0-9_-]{28}|\bya29\.[A-Za-z0-9_-]{30,}",
    "model-key": r"\bsk-(?:ant|proj|svcacct|admin|or|lf)-[A-Za-z0-9_-]{24,}|\bsk-[A-Za-z0-9]{32,}"
    r"|\bgsk_[A-Za-z0-9]{40,}|\bxai-[A-Za-z0-9]{60,}|\bhf_[A-Za-z0-9]{30,}|\bpplx-[A-Za-z0-9]{40,}",
    "npm-token": r"\bnpm_[A-Za-z0-9]{36,}",
    "pypi-token": r"\bpypi-AgE[A-Za-z0-9_-]{50,}",
    "sendgrid-key": r"\bSG\.[A-Za-z0-9_-]{20,24}\.[A-Za-z0-9_-]{39,50}",
    "jwt": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}",
    "private-key": rf"-----BEGIN {_KEY_LINES}"
    rf"(?:{_KEY}*?-*-----END {_KEY_LINES}|{_HEADERS}(?:{_GAP}{_ROW})+{_LAST_ROW})",
}
"""Regular expressions in RE2's syntax, for bytes."""

BEGUN: Final = (
    r"(?:\b(?:(?:AKIA|ASIA|ABIA|ACCA|gh[pousr]_|github_pat_|gl[a-z]{2,5}-|xox[abeoprs]-|xapp-\d-|[sr]k_(?:live|test)_"
    r"|whsec_|AIza|GOCSPX-|ya29\.|sk-|gsk_|xai-|hf_|pplx-|npm_|pypi-AgE|SG\.)[A-Za-z0-9_+/.-]{4,}"
    r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2})"
    rf"|-----BEGIN {_KEY_LINES}{_HEADERS}{_GAP}[A-Za-z0-9+/=]{{1,31}})\z"
)
"""The beginning of a token at the end of what was printed so far."""

LEFT: Final = rf"\A{_KEY}*?{_ROW}{_KEY}*?-*-----END {_KEY_LINES}"
"""The end of a private key at the beginning of what is left of an output."""
