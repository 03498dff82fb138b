"""The page in a real browser: from disk and served, live, filtered, hostile, empty, huge, by keyboard, on a phone."""

import copy
import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import needs
from tests.exporter.samples import NOW, POLICIES, Json, namespace, pod, record, recorded, status
from webhook.exporter import publish
from webhook.exporter.collect import Collector
from webhook.exporter.decisions import Reader, Tally
from webhook.exporter.events import EventTally
from webhook.exporter.exporter import Exporter, PolicyFolder
from webhook.exporter.history import History
from webhook.exporter.live import ViewSource
from webhook.exporter.serve import server
from webhook.exporter.status import Observed
from webhook.exporter.view import ClusterView, view_of

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"
SOURCE = ROOT / "webhook" / "exporter" / "dashboard"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>\u2028javascript:alert(1)'

CHECKS = (Path(__file__).parent / "page_checks.js").read_text()

pytestmark = pytest.mark.slow

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = needs.program("chromium", "apt-get install chromium", "chromium-browser", "google-chrome")
    ARTIFACTS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a status from disk; at the end there must have been no error and no violation of the policy."""
    complaints: list[str] = []
    contexts = []

    def start(
        document: Json | None,
        *,
        width: int = 1440,
        scheme: Any = "light",
        locale: str = "en-GB",
        url: str = "",
        **options: Any,
    ) -> Page:
        publish.copy_dashboard(tmp_path)
        if document is not None:
            publish.publish(tmp_path, publish.as_json(document))
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, locale=locale, timezone_id="UTC", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.clock.install(time=NOW)
        page.goto(url or (tmp_path / "index.html").as_uri())
        return page

    yield start
    for context in contexts:
        context.close()
    assert [text for text in complaints if "ERR_FILE_NOT_FOUND" not in text] == []


@pytest.fixture(scope="module")
def busy() -> Json:
    """The busy cluster with a day of decisions."""
    tally, events, history = Tally(), EventTally(), History()
    reader = Reader(tally)
    lines = []
    for number in range(240):
        now = NOW.timestamp() - 86_000 + number * 350
        team = ("inference", "training", "research")[number % 3]
        verdict, phase = (("deny", "mutate"), ("patch", "mutate"), ("allow", "validate"))[number % 4 % 3]
        names = {"namespace": f"ai-{team}", "name": f"{('chat', 'embed', 'sweep', 'finetune')[number % 4]}-{number}"}
        who = ("alice", "bob", "system:serviceaccount:argocd:application-controller")[number % 5 % 3]
        words = f"GPU quota exceeded in namespace ai-{team} (rule {team}): asks for 2, free 1 of 4"
        lines.append(record(number, verdict, phase=phase, user=who, now=now, message=words, rule=team, **names))
    reader.add(lines)
    reader.flush()
    view = recorded("busy-cluster")
    events.add(view.events)
    minute = int(NOW.timestamp()) // 60
    for step in range(1_400):
        gauges = {
            "gpuRequested": 20 + step % 400 // 25,
            "gpuQuota": 42,
            "pendingPods": 3,
            "estimatedIdleCostPerHour": 40 + step % 300 / 10,
        }
        history.sample(minute - 1_399 + step, gauges)
    streams = [
        {"stream": "webhook-a-20261201T080000Z-1", "state": "open", "records": 240, "lastTime": "2026-12-01T20:59:00Z"},
        {
            "stream": "webhook-b-20261201T080000Z-1",
            "state": "gap",
            "records": 7,
            "lastTime": "2026-12-01T20:00:00Z",
            "problem": "records 3 to 5 are missing",
        },
    ]
    observed = Observed(tally, events, streams, {}, history.document(minute, tally), has_audit=True)
    return status(view, observed)


def card(page: Page, name: str) -> str:
    return page.locator(f".card.{name} .value").inner_text()


def ask(page: Page, question: str) -> Any:
    """One of page_checks.js."""
    page.evaluate(CHECKS)
    return page.evaluate(f"window.checks.{question}()")


def shot(page: Page, name: str, *, whole: bool = False) -> None:
    page.screenshot(path=ARTIFACTS / f"dashboard-{name}.png", full_page=whole)


# -- loading ----------------------------------------------------------------------------------------------------------


def test_the_page_opens_from_disk(open_page: Open, busy: Json) -> None:
    page = open_page(busy)
    assert [card(page, name) for name in ("requested", "pending", "idle")] == ["38", "6", "$91.20"]
    assert int(card(page, "denied")) == busy["decisions"]["deniedToday"] > 0
    assert page.locator("#namespace-table tbody tr").count() == 3
    assert page.locator("#gate-capacity .gate-count").inner_text() == "5"
    assert "No node in its pool has enough" in page.locator("#event-table").inner_text()
    starved = page.locator("#event-table tbody tr", has_text="replicaset/rerank-over-quota")
    assert starved.count() == 1 and starved.locator(".num").first.inner_text() == "12", "ten events, twelve times"
    expect(page.locator("#trust-panels")).to_contain_text("records 3 to 5 are missing")
    shot(page, "wide-light", whole=True)


def test_the_seed_cluster_in_the_dark(open_page: Open) -> None:
    page = open_page(status(recorded("seed-cluster")), scheme="dark")
    assert [card(page, name) for name in ("requested", "pending", "denied", "idle")] == ["5", "5", "–", "$12"]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(12, 14, 18)"
    shot(page, "seed-dark")


def test_the_busy_cluster_in_the_dark(open_page: Open, busy: Json) -> None:
    shot(open_page(busy, scheme="dark"), "wide-dark", whole=True)


def test_an_empty_cluster_says_so_everywhere(open_page: Open) -> None:
    page = open_page(status(ClusterView()))
    assert card(page, "requested") == "0"
    for place, words in (
        ("#namespace-table", "No namespace carries the label"),
        ("#decision-table", "No record has been read"),
        ("#event-table", "No pod failed"),
        ("#chart", "Nothing has been recorded yet"),
        ("#node-table", "No node is known"),
        ("#cost-panels", "No GPU pod exists"),
    ):
        expect(page.locator(place)).to_contain_text(words)
    shot(page, "empty")


def test_without_data_the_page_says_how_to_get_it(open_page: Open) -> None:
    page = open_page(None)
    expect(page.locator("#banners")).to_contain_text("gpu-webhook export --out DIR")
    expect(page.locator("#overview")).to_be_hidden()


# -- staying fresh ----------------------------------------------------------------------------------------------------


def test_it_refreshes_itself_from_disk(open_page: Open, tmp_path: Path, busy: Json) -> None:
    page = open_page(busy)
    page.fill("#filter-text", "chat")
    newer = copy.deepcopy(busy)
    newer["generatedAt"] = "2026-12-01T21:00:15Z"
    newer["summary"]["gpuRequested"] = 41
    newer["decisions"]["deniedToday"] += 1
    publish.publish(tmp_path, publish.as_json(newer))
    page.clock.fast_forward(11_000)
    expect(page.locator(".card.requested .value")).to_have_text("41")
    assert page.input_value("#filter-text") == "chat", "what the reader does is left alone"
    assert page.evaluate("document.activeElement.id") == "filter-text"
    expect(page.locator("#announce")).to_contain_text("denied today")


def test_when_the_data_goes_away_the_last_stays_with_a_warning(open_page: Open, tmp_path: Path, busy: Json) -> None:
    page = open_page(busy)
    (tmp_path / publish.JS_NAME).unlink()
    page.clock.fast_forward(11_000)
    expect(page.locator("#banners")).to_contain_text("does not answer")
    assert card(page, "requested") == "38"
    publish.publish(tmp_path, publish.as_json(busy))
    page.clock.fast_forward(11_000)
    expect(page.locator("#banners")).not_to_contain_text("does not answer")


class _Changing(ViewSource):
    """A cluster that a test changes."""

    current = ClusterView()

    def view(self) -> ClusterView:
        return self.current

    def problems(self) -> list[str]:
        return []

    def close(self) -> None: ...


def test_it_refreshes_itself_when_served(open_page: Open) -> None:
    source = _Changing()
    source.current = view_of([namespace("team-a"), pod("one", 1)])
    exporter = Exporter(source, PolicyFolder(POLICIES), Collector([], None))
    exporter.round(NOW)
    web = server(exporter, "127.0.0.1", 0)
    threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
    try:
        page = open_page(None, url=f"http://127.0.0.1:{web.server_port}/")
        expect(page.locator(".card.requested .value")).to_have_text("1")
        source.current = view_of([namespace("team-a"), pod("one", 1), pod("two", 4)])
        exporter.round(NOW + timedelta(seconds=15))
        page.clock.fast_forward(11_000)
        expect(page.locator(".card.requested .value")).to_have_text("5")
    finally:
        web.shutdown()
        web.server_close()
        exporter.close()


# -- decisions --------------------------------------------------------------------------------------------------------


def test_decisions_are_filtered_by_verdict_namespace_user_and_text(open_page: Open, busy: Json) -> None:
    page = open_page(busy)
    rows = page.locator("#decision-table tbody tr")
    recent = busy["decisions"]["recent"]

    def shown(**wanted: str) -> int:
        found = [
            one
            for one in recent
            if wanted.get("verdict", one["verdict"]) == one["verdict"]
            and wanted.get("namespace", one["object"]["namespace"]) == one["object"]["namespace"]
            and wanted.get("user", one["user"]["name"]) == one["user"]["name"]
            and wanted.get("name", one["object"]["name"]) == one["object"]["name"]
        ]
        assert found, "the sample has something to find"
        return min(len(found), 50)

    page.click("#verdicts button[data-key=verdict-deny]")
    expect(rows).to_have_count(shown(verdict="deny"))
    assert set(page.locator("#decision-table tbody .chip.bad").all_inner_texts()) == {"denied"}
    page.select_option("#filter-namespace", "ai-research")
    expect(rows).to_have_count(shown(verdict="deny", namespace="ai-research"))
    page.fill("#filter-user", "ALICE")
    expect(rows).to_have_count(shown(verdict="deny", namespace="ai-research", user="alice"))
    page.click("#decision-filters button[type=reset]")
    expect(rows).to_have_count(50)
    page.fill("#filter-text", "chat-40")
    expect(rows).to_have_count(shown(name="chat-40"))
    page.fill("#filter-text", "no such thing")
    expect(page.locator("#decision-table")).to_contain_text("No record matches")


def test_a_click_shows_the_whole_record_and_what_to_change(open_page: Open, busy: Json) -> None:
    page = open_page(busy)
    page.click("#verdicts button[data-key=verdict-deny]")
    opener = page.locator("#decision-table tbody button").first
    opener.focus()
    page.keyboard.press("Enter")
    drawer = page.locator("#drawer")
    expect(drawer).to_be_visible()
    expect(drawer).to_contain_text("Ask for fewer GPUs")
    expect(drawer).to_contain_text("Ask #gpu-platform.")
    expect(drawer.locator(".denial")).to_contain_text("to fix     ask for at most 1")
    drawer.locator("summary").click()
    raw = json.loads(drawer.locator("details pre").inner_text())
    assert raw in busy["decisions"]["recent"]
    shot(page, "record")
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    assert page.evaluate("document.activeElement.getAttribute('data-key')") == f"record-{raw['id']}", (
        "the focus returns"
    )
    page.click("#verdicts button[data-key=verdict-patch]")
    page.locator("#decision-table tbody tr").first.click()
    expect(drawer.locator(".patch")).to_contain_text("/spec/priorityClassName")


def test_a_gate_leads_to_the_decision(open_page: Open, busy: Json) -> None:
    page = open_page(busy)
    page.click("#gate-quota")
    page.locator("#gate-panel .link").first.click()
    expect(page.locator("#drawer")).to_contain_text("Decision ")


# -- hostile text -----------------------------------------------------------------------------------------------------


def _poisoned(
    value: Any, keep: frozenset[str] = frozenset({"gate", "state", "verdict", "would", "code", "currency"})
) -> Any:
    """Every text that comes from users, made hostile; what the page switches on stays."""
    if isinstance(value, dict):
        return {
            key: item if key in keep or key.endswith(("At", "Time", "Timestamp", "since")) else _poisoned(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_poisoned(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_b65_hostile_text_is_shown_as_text_everywhere(open_page: Open, busy: Json) -> None:
    page = open_page(_poisoned(busy))
    page.wait_for_timeout(200)
    for gate in ("policy", "quota", "pool", "capacity"):
        page.click(f"#gate-{gate}")
    page.locator("#decision-table tbody button").first.click()
    page.locator("#drawer summary").click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, dialog img, main script, main a[href^=javascript]").count() == 0
    for place in (
        "#namespace-table",
        "#gate-panel",
        "#event-table",
        "#decision-table",
        "#drawer",
        "#node-table",
        "#attention-panels",
    ):
        assert "<img src=x onerror=" in page.locator(place).inner_text(), place
    shot(page, "hostile")


def test_b65_the_sources_cannot_make_markup_of_data() -> None:
    scripts = "\n".join((SOURCE / name).read_text() for name in publish.DASHBOARD if name.endswith(".js"))
    forbidden = (
        r"(?:inner|outer|set|insertAdjacent)HTML|document\.write|\beval\(|new Function|DOMParser|createContextual"
    )
    assert re.findall(forbidden, scripts) == []
    html = (SOURCE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|\son[a-z]+=|\sstyle=|<style", html) == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None and "unsafe" not in policy[1]
    assert "script-src 'self'" in policy[1] and "default-src 'none'" in policy[1]
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", html + scripts) == [], "nothing is loaded from elsewhere"


# -- size -------------------------------------------------------------------------------------------------------------


def test_500_namespaces_stay_fast(open_page: Open) -> None:
    objects = [
        namespace(f"team-{number:03}", ("inference", "training", "research")[number % 3]) for number in range(500)
    ]
    objects += [
        pod(f"p-{number}", 1, namespace=f"team-{number % 500:03}", phase="Pending" if number % 9 == 0 else "Running")
        for number in range(2_000)
    ]
    page = open_page(status(view_of(objects)))
    rows = page.locator("#namespace-table tbody tr")
    expect(rows).to_have_count(50)
    spent = ask(page, "drawTwice")
    shot(page, "500-namespaces")
    page.click("[data-key=more-namespaces]")
    expect(rows).to_have_count(500)
    page.click("[data-key=sort-pending]")
    assert rows.first.locator(".chip.warn").count() == 1
    page.fill("#namespace-filter", "team-123")
    expect(rows).to_have_count(1)
    assert spent < 3_000, f"two whole drawings took {spent:.0f} ms"


# -- people -----------------------------------------------------------------------------------------------------------


def test_english_and_chinese_say_the_same_things() -> None:
    english, chinese = (_strings(name) for name in ("strings-en.js", "strings-zh.js"))
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", chinese[key])), key


def test_every_word_that_the_page_asks_for_exists() -> None:
    known = _strings("strings-en.js").keys()
    scripts = "\n".join((SOURCE / name).read_text() for name in publish.DASHBOARD if name.endswith((".js", ".html")))
    asked = set(re.findall(r"\bt\(\"([a-zA-Z.]+)\"", scripts)) | set(
        re.findall(r'data-(?:text|label|placeholder)="([^"]+)"', scripts)
    )
    assert len(asked) > 100 and sorted(asked - known) == []
    prefixes = tuple(prefix for prefix in re.findall(r"\bt\(`([a-zA-Z.]+)\$\{", scripts))
    literals = set(re.findall(r"\"([a-zA-Z]+\.[a-zA-Z.]+)\"", scripts))
    assert (
        sorted(key for key in known if key not in asked and key not in literals and not key.startswith(prefixes)) == []
    )


def _strings(name: str) -> dict[str, str]:
    text = (SOURCE / name).read_text(encoding="utf-8")
    return json.loads(text[text.index("= {", text.index("window.STRINGS.")) + 2 :].rstrip().rstrip(";"))  # type: ignore[no-any-return]


def test_the_language_can_be_switched(open_page: Open, busy: Json) -> None:
    page = open_page(busy)
    page.click("#lang-zh")
    expect(page.locator("#h-gates")).to_have_text("GPU 任务停在哪里")
    expect(page.locator("#event-table")).to_contain_text("其资源池内没有节点有足够的空闲")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.reload()
    expect(page.locator("#h-gates")).to_have_text("GPU 任务停在哪里")


def test_colours_follow_the_system_until_told_otherwise(open_page: Open, busy: Json) -> None:
    page = open_page(busy, scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate(background) != dark, "light, against the system"
    page.click("#theme")
    assert page.evaluate(background) == dark, "dark by choice"


def test_a_phone_shows_everything_without_scrolling_sideways(open_page: Open, busy: Json) -> None:
    for width, locale in ((390, "zh-CN"), (360, "en-GB")):
        page = open_page(busy, width=width, locale=locale, has_touch=True)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        expect(page.locator("#namespace-table tbody th").first).to_be_visible()
        shot(page, f"phone-{width}", whole=True)


def test_everything_can_be_reached_and_named(open_page: Open, busy: Json) -> None:
    page = open_page(busy)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert ask(page, "unnamed") == []
    assert ask(page, "tablesWithoutHeaders") == 0
    assert page.locator("h1").count() == 1 and page.locator("main").count() == 1


def test_gates_and_chart_are_read_by_arrow_keys(open_page: Open, busy: Json) -> None:
    page = open_page(busy)
    page.click("#gate-quota")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "gate-pool"
    assert page.get_attribute("#gate-pool", "aria-selected") == "true"
    expect(page.locator("#gate-panel")).to_contain_text("wrong-pool")
    plot = page.locator(".plot")
    plot.focus()
    latest = plot.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowLeft")
    assert plot.get_attribute("aria-valuetext") != latest
    page.keyboard.press("End")
    assert plot.get_attribute("aria-valuetext") == latest


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(open_page: Open, busy: Json, scheme: str) -> None:
    page = open_page(busy, scheme=scheme)
    found = ask(page, "contrast")
    assert found["looked"] > 300 and found["poor"] == []
