"""Makes pages of templates. What is inserted is shown, whatever it is: markup and control characters have no effect."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any, Final, cast
from urllib.parse import quote

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shellback.exec.core.display import age, visible
from shellback.settings import CONSOLE

PREFIX: Final = CONSOLE
SECTIONS: Final = [
    ("Waiting", "/"),
    ("Conversations", "/conversations"),
    ("Processes", "/processes"),
    ("Rules", "/rules"),
    ("Audit", "/audit"),
    ("Costs", "/costs"),
    ("Queue", "/queue"),
    ("Health", "/health"),
]
"""The pages that each page leads to, with their paths below `PREFIX`."""

SEARCHED: Final = 200
CELLS: Final = 500
"""At most so many marks of cells in one text."""
_MARKDOWN: Final = (
    MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable(["link", "image", "autolink"])
)


@functools.lru_cache(512)
def markdown(text: str) -> Markup:
    """Markdown as markup. HTML, links and pictures in it stay text: an agent makes nothing that can be clicked.

    A text with very many cells of tables is shown as it is: drawn, a few of its bytes would take seconds.
    """
    if text.count("|") > CELLS:
        return Markup("<pre>%s</pre>") % visible(text)
    return Markup(_MARKDOWN.render(visible(text)))  # noqa: S704 - the renderer escapes


def ago(moment: float | None) -> str:
    """How long ago a time of the wall clock is."""
    return "-" if moment is None else f"{age(time.time() - moment)} ago"


def left(moment: float) -> str:
    """How long it is until a time of the wall clock."""
    return age(max(0.0, moment - time.time()))


def stamp(moment: float | None) -> str:
    """A time of the wall clock, in UTC."""
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def day(moment: float) -> str:
    """The day of a time of the wall clock, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def counted(number: int, one: str, more: str = "") -> str:
    """So many of what is called by this word."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def path(*parts: str) -> str:
    """The address of a page; each part may hold anything."""
    return "/".join([PREFIX, *(quote(part, safe="") for part in parts)])


def _inserted(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("shellback.console"), autoescape=True, finalize=_inserted,
    undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
cast("dict[str, Any]", _ENVIRONMENT.filters).update(
    markdown=markdown, ago=ago, left=left, stamp=stamp, age=age, counted=counted
)
cast("dict[str, Any]", _ENVIRONMENT.globals).update(path=path, prefix=PREFIX, sections=SECTIONS)


def asked_for(request: Request) -> str:
    """The address of a page with all that was asked for, for another look."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def searched(request: Request) -> str:
    """The text that is searched for."""
    return request.query_params.get("text", "")[:SEARCHED].replace("\x00", "")


def page(
    request: Request, template: str, *, status: int = 200, headers: dict[str, str] | None = None, **told: Any
) -> HTMLResponse:
    """A page of a template, which extends `base.html`."""
    who = {name: getattr(request.state, name, None) for name in ("account", "csrf")}
    text = _ENVIRONMENT.get_template(template).render(here=request.url.path, **who, **told)
    return HTMLResponse(text, status_code=status, headers=headers)


def message(
    request: Request, said: str, *, status: int = 200, more: Iterable[tuple[str, str]] = (), **headers: str
) -> Response:
    """A page of one sentence, with the texts and paths of links that lead on."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return page(request, "message.html", status=status, said=said, more=[*more], headers=named)
