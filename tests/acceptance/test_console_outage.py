"""The database goes away while the console is open."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from playwright.sync_api import Page, expect

from tests.browsers import PATIENCE_MS, chromium, come_in, page_of
from tests.consoles import PASSWORD, Crowd, asked
from tests.databases import TEMPLATE, NoPostgres, PostgresServer, serving_postgres, unavailable
from tests.serving import Served, served
from tests.stage import Stage, stage


@pytest.fixture(scope="module")
def outage() -> Generator[tuple[PostgresServer, Stage, Served]]:
    try:
        with (
            serving_postgres(durable=True) as postgres,
            stage(postgres.url(postgres.create(TEMPLATE))) as made,
            served(made) as server,
        ):
            yield postgres, made, server
    except NoPostgres as error:
        unavailable(str(error))


def test_pages_say_that_the_database_is_away_and_come_back_and_no_password_is_wrong_by_it(
    outage: tuple[PostgresServer, Stage, Served],
) -> None:
    postgres, place, server = outage
    crowd = Crowd(place, server)
    crowd.person("grace", "viewer")
    with chromium() as browser, page_of(browser, server, breaks=True) as page:
        come_in(page, place, server)
        away = page.locator("#connection")
        expect(away).to_be_hidden()
        postgres.kill()
        try:
            expect(away).to_be_visible(timeout=2 * PATIENCE_MS)
            late = page.context.new_page()
            late.goto(f"{server.base}/console/rules")
            _says_so(late)
            for _ in range(7):
                assert crowd.browser().enter("grace", PASSWORD).status_code == 503
        finally:
            postgres.start()
        expect(away).to_be_hidden(timeout=2 * PATIENCE_MS)
        # The page that was opened in the meantime asks again by itself.
        expect(late.locator("h1")).to_have_text("Rules", timeout=PATIENCE_MS)
        asked(place, "after", "make after")
        expect(page.locator(".card.request")).to_contain_text("make after")
    assert crowd.browser().enter("grace", PASSWORD).status_code == 303
    crowd.close()


def _says_so(page: Page) -> None:
    expect(page.locator(".said")).to_contain_text("The database does not answer")
    expect(page.locator(".said")).to_have_css("border-left-style", "solid")  # the files of pages need no database


@pytest.mark.parametrize("gone", ["shellback.db", "."])
def test_pages_say_that_the_file_of_the_database_is_away_and_come_back_with_it(gone: str) -> None:
    with (
        stage() as place,
        served(place) as server,
        chromium() as browser,
        page_of(browser, server, breaks=True) as page,
    ):
        come_in(page, place, server)
        away, there, elsewhere = page.locator("#connection"), place.home / gone, place.root / "elsewhere"
        expect(away).to_be_hidden()
        there.rename(elsewhere)
        expect(away).to_be_visible(timeout=PATIENCE_MS)
        late = page.context.new_page()
        late.goto(f"{server.base}/console/rules")
        _says_so(late)
        assert not there.exists(), "no new one is made in its place"
        elsewhere.rename(there)
        expect(away).to_be_hidden(timeout=PATIENCE_MS)
        expect(late.locator("h1")).to_have_text("Rules", timeout=PATIENCE_MS)
        asked(place, "after", "make after")
        expect(page.locator(".card.request")).to_contain_text("make after")
