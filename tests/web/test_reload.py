"""What the browser transfers when the page is loaded again."""

from playwright.sync_api import Page, expect

from tests.web.views import VIEW_SELECTORS


def test_second_load_transfers_only_304(page: Page, address: str) -> None:
    """All files are validated by their ETag, and none is sent again."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    urls: dict[str, str] = {}
    statuses: dict[str, int] = {}
    sizes: dict[str, float] = {}
    session.on("Network.requestWillBeSent", lambda event: urls.update({event["requestId"]: event["request"]["url"]}))
    session.on(
        "Network.responseReceivedExtraInfo", lambda event: statuses.update({event["requestId"]: event["statusCode"]})
    )
    session.on("Network.loadingFinished", lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}))

    def load() -> tuple[dict[str, int], float]:
        for record in (urls, statuses, sizes):
            record.clear()
        page.goto("about:blank")
        page.goto(f"{address}/#/positions")
        expect(page.locator(VIEW_SELECTORS["positions"]).first).to_be_visible()
        page.wait_for_load_state("networkidle")
        own = {key: url for key, url in urls.items() if url.split("#")[0] == f"{address}/" or "/page/" in url}
        return {url: statuses[key] for key, url in own.items()}, sum(sizes[key] for key in own)

    first_statuses, first_bytes = load()
    second_statuses, second_bytes = load()
    assert len(first_statuses) > 20
    assert set(first_statuses.values()) == {200}
    assert second_statuses == dict.fromkeys(first_statuses, 304)
    assert second_bytes < first_bytes / 3
    print(f"{len(first_statuses)} files: {first_bytes:.0f} bytes, then {second_bytes:.0f}")
