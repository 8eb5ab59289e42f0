"""The report page: well-formed, self-contained, escaped, accessible; in headless Chromium where one is installed."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from acct.errors import ArtifactError
from acct.reporting.claims import EMBEDDED
from acct.reporting.html import write_report
from acct.reporting.html_chart import speedup_chart, ticks
from acct.reporting.html_elements import VOID, Ids, Markup, tag
from acct.reporting.html_sections import aspect, charts_html, flat, read_runs, settings_html
from acct.reporting.html_tables import block_html, share_of_reference, standing
from acct.reporting.intervals import Bootstrap, Interval
from acct.reporting.tables import Block, Cell, Text
from tests.reporting.stored import store
from tests.reporting.test_claims import timing, write_timings

BOOT = Bootstrap(300)
FIRST, SECOND = list(EMBEDDED.values())[:2]
NASTY = "<script>alert('x')</script> & \"quoted\""
BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
WIDE_SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 300"><rect id="a" width="900" height="300"/></svg>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><rect id="a" width="1" height="1"/></svg>'


class Reader(HTMLParser):
    """Checks nesting while reading; keeps every element with its attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len({key for key, _ in attributes}) == len(attributes), f"an attribute twice in {self.get_starttag_text()}"
        self.elements.append((name, dict(attributes), tuple(self.open)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open and self.open.pop() == name, f"</{name}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.elements if name in names]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two directions at three settings, charts, latency, configurations with characters that HTML gives a meaning."""
    root = tmp_path_factory.mktemp("results")
    for number, direction in enumerate((FIRST, SECOND)):
        folder = store(root, direction)
        config = {"scale": "micro", "prompts": {"cue": NASTY}, "training": {"seed": number, "tasks": ["a", "b"]}}
        (folder.parent / "config.yaml").write_text(json.dumps(config))
        noted = json.loads((folder / "provenance.json").read_text())
        noted |= {"capacities": {"counts": [[1, 2], [3, 6]], "context_tokens": 9}, "valid": True, "processor": NASTY}
        (folder / "provenance.json").write_text(json.dumps(noted))
        store(root, direction, run=f"{direction}-r0.5", retention=0.5)
        store(root, direction, run=f"{direction}-random", variant="random")
    figures = root / "micro" / "figures"
    figures.mkdir()
    (figures / "one_chart.svg").write_text(SVG)
    (figures / "a_wide_one_chart.svg").write_text(WIDE_SVG)
    (figures / "one_chart.png").write_bytes(b"not read")
    (figures / "only_png.png").write_bytes(b"\x89PNG")
    (figures / "one_chart.pdf").write_bytes(b"not shown")
    write_timings(root, [timing(n, 4.0, n / 100, direction) for direction in (FIRST, SECOND) for n in (256, 512, 1024)])
    return root


@pytest.fixture(scope="module")
def text(results: Path) -> str:
    return write_report(results, "micro", bootstrap=BOOT).read_text(encoding="utf-8")


def test_well_formed_with_unique_ids_and_links_that_lead_somewhere(text: str) -> None:
    page = Reader(text)
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    links = [attributes["href"] for attributes in page.named("a")]
    assert len(ids) == len(set(ids)) == 10 and links == [f"#{name}" for name in ids]
    assert text.startswith("<!doctype html>\n<html lang=")
    assert [len(page.named(name)) for name in ("title", "h1", "main")] == [1, 1, 1]


def test_nothing_is_asked_for_from_outside(text: str) -> None:
    page = Reader(text)
    places = [value for _, attributes, _ in page.elements for key, value in attributes.items() if key in ("src", "href", "srcset", "data")]
    assert places and all(place.startswith(("#", "data:image/")) for place in places)
    assert page.named("script", "link", "iframe", "object", "embed", "base", "form") == []
    assert not re.search(r"@import|url\(|https?://", text)
    assert [key for _, attributes, _ in page.elements for key in attributes if key.startswith("on") or key == "style"] == []


def test_every_table_has_a_caption_scopes_and_a_box_to_scroll_in(text: str) -> None:
    page = Reader(text)
    tables = text.count("<table")
    captions = [attributes for attributes in page.named("caption")]
    boxes = [attributes for attributes in page.named("div") if attributes.get("class") == "scroll"]
    assert tables == len(captions) == len(boxes) > 8 and len(re.findall(r"<table[^>]*><caption>", text)) == tables
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)
    assert {attributes.get("scope") for attributes in page.named("th")} == {"row", "col"}
    assert all(attributes.get("alt") for attributes in page.named("img"))
    for table in text.split("<table")[1:]:
        widths = {len(re.findall(r"<t[hd][ >]", line)) for line in table.split("</table>")[0].split("<tr>")[1:]}
        assert len(widths) == 1, "every row has the cells of the head"


def test_texts_are_escaped(text: str) -> None:
    assert "<script" not in text and "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot;" in text
    assert NASTY in "".join(Reader(text).text)
    assert tag("p", "<b>", Markup("<i>x</i>"), title='"<') == '<p title="&quot;&lt;">&lt;b&gt;<i>x</i></p>'
    assert tag("details", open=True, id=None) == "<details open></details>" and tag("br") == "<br>"


def test_tables_claims_charts_latency_controls_runs_and_settings_are_there(text: str) -> None:
    words = "".join(Reader(text).text)
    for expected in (
        "Table 1, micro qwen3 small → large", "Table 2, micro qwen3 small → large", "ACCT 2x", "Random, retrained", "Claims of the paper",
        "not comparable at this scale", "one chart", "Latency of each context sample", "All 6 comparisons", "prompts.cue",
        "no card of any stage is there", "Scored: ",
        "Provenance: commit 0123456789ab", "Capacities that the Allocator gave", "The same statements about the embedded pairs",
    ):  # fmt: skip
        assert expected in words, expected
    assert "To make it" not in words
    assert 'class="number better"' in text and "data:image/svg+xml;base64," in text and "@media (prefers-color-scheme: dark)" in text


def test_what_is_missing_is_said_with_its_command(tmp_path: Path) -> None:
    store(tmp_path, FIRST)
    words = "".join(Reader(write_report(tmp_path, "micro", bootstrap=BOOT).read_text()).text)
    for expected in (
        "To make it: acct reproduce table2 scale=micro",
        "To make it: acct figures scale=micro", "No latency records at this scale.",
        "No run folder holds a config.yaml.",
    ):  # fmt: skip
        assert expected in words, expected


def test_a_scale_with_latency_alone_has_a_page_and_an_empty_one_has_none(tmp_path: Path) -> None:
    write_timings(tmp_path, [timing(1_000, 4.0, 8.0)], "paper")
    words = "".join(Reader(write_report(tmp_path, "paper").read_text()).text)
    assert "To make it: acct reproduce table1 scale=paper" in words and "Provenance: latency records only" in words
    with pytest.raises(ArtifactError, match="neither an evaluated run"):
        write_report(tmp_path, "micro")
    (tmp_path / "micro" / "x" / "evaluation").mkdir(parents=True)
    with pytest.raises(ArtifactError):
        write_report(tmp_path, "micro")
    assert not (tmp_path / "micro" / "report.html").exists()


def test_the_page_is_a_pure_function_of_the_folders(results: Path, text: str, tmp_path: Path) -> None:
    again = write_report(results, "micro", bootstrap=BOOT, path=tmp_path / "again.html").read_text(encoding="utf-8")
    assert again == text and str(results) not in text


def test_standing_by_hand() -> None:
    assert [standing(share) for share in (1.01, 1.0, 0.9, 0.89, 0.5, 0.49, 0.0, math.nan)] == [
        "better", "near", "near", "low", "low", "far", "far", "",
    ]  # fmt: skip

    def cell(value: float) -> Cell:
        return Cell(Interval(value, value, value))

    found = (("Target Full", (cell(80.0), cell(4.0), Text("x"))), ("ACCT", (cell(40.0), cell(5.0), Text("y"))),
             ("ACCT, Relative (%)", (Cell(Interval(0.5, 0.4, 0.6), factor=100.0), cell(math.nan), Text(""))),
             ("Zeros", (cell(1.0), cell(9.0), Text(""))))  # fmt: skip
    block = Block("one", ("QA (F1)", "Text (PPL)", "kind"), found)
    assert [share_of_reference(block, "ACCT", one, n) for n, one in enumerate(found[1][1][:2])] == [0.5, 0.8]
    assert math.isnan(share_of_reference(block, "Target Full", found[0][1][0], 0))
    assert share_of_reference(block, "ACCT, Relative (%)", found[2][1][0], 0) == 0.5
    html = block_html(block, "caption")
    assert html.count("control") == 3 and '<td class="number low"><span>50.0</span><small>[40.0, 60.0]</small></td>' in html


def test_ids_charts_and_settings() -> None:
    ids = Ids()
    assert [ids.new(name) for name in ("A b!", "a-b", "a b 2", "", "é")] == ["a-b", "a-b-2", "a-b-2-2", "part", "part-2"]
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": 1, "a.c": {}, "d": [1, 2]}
    assert ticks(8.4) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0] and ticks(0.0) == [0.0, 1.0]
    assert charts_html(Path("no-such-folder")) is None
    png = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (300).to_bytes(4, "big") + (100).to_bytes(4, "big")
    contents = (png, SVG.encode(), b'<svg viewBox="0 0 432.5 173">', b"x", png[:9])
    assert [aspect(content) for content in contents] == [3.0, 1.0, 2.5, 1.0, 1.0]


def test_the_line_chart_by_hand(tmp_path: Path) -> None:
    from acct.reporting.claims_latency import read_latency

    found = read_latency(write_timings(tmp_path, [timing(256, 4.0, 4.0), timing(1_024, 4.0, 8.0)]))
    drawing = speedup_chart(found)
    Reader(drawing)
    assert 'points="48,137 624,14"' in drawing  # 1x half way up, 2x at the top; 256 and 1,024 tokens at the two ends
    Reader(speedup_chart(found[:1]))


def test_settings_that_differ_and_settings_that_are_shared(results: Path, tmp_path: Path) -> None:
    html = settings_html(read_runs(results / "micro"))
    differing, shared = html.split("<details")
    assert "training.seed" in differing and "prompts.cue" in shared and "3 settings that all 2 runs share" in shared and "a, b" in shared
    folder = store(tmp_path, FIRST)
    (folder.parent / "config.yaml").write_text("- 1\n")
    with pytest.raises(ArtifactError, match="must hold a mapping"):
        read_runs(tmp_path / "micro")


PROBE = """<iframe id="page" style="width:WIDTHpx;height:900px;border:0"></iframe><script>
const frame = document.getElementById('page');
frame.addEventListener('load', () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const shown = one => {
    const box = one.getBoundingClientRect();
    return box.width > 0 && box.height > 20 && box.right < view.innerWidth + 1;
  };
  const wide = [...page.querySelectorAll('.scroll')].find(one => one.scrollWidth > one.clientWidth);
  wide.scrollLeft = 60;
  const first = wide.querySelector('tbody th').getBoundingClientRect().left - wide.getBoundingClientRect().left;
  document.title = JSON.stringify({
    document: page.documentElement.scrollWidth, window: view.innerWidth, first: Math.round(first),
    requests: view.performance.getEntriesByType('resource').filter(one => !one.name.startsWith('data:')).length,
    broken: [...page.images].filter(one => one.complete && one.naturalWidth === 0 && one.alt.includes('one chart')).length,
    hidden: [...page.querySelectorAll('main > section')].filter(one => !shown(one)).map(one => one.id),
    sections: page.querySelectorAll('main > section').length,
  });
});
frame.srcdoc = new TextDecoder().decode(Uint8Array.from(atob('CONTENT'), one => one.charCodeAt(0)));
</script>"""


@pytest.mark.skipif(BROWSER is None, reason=f"no headless browser is installed (looked for {', '.join(BROWSERS)})")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser_only_tables_scroll_sideways(text: str, tmp_path: Path, width: int) -> None:
    """In a frame as wide as a phone or a desk: no wider, every section shown, no complaint, no request, tables in their boxes."""
    content = base64.b64encode(text.encode("utf-8")).decode("ascii")
    place = tmp_path / "frame.html"
    place.write_text(PROBE.replace("WIDTH", str(width)).replace("CONTENT", content), encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,950", "--enable-logging=stderr", "--dump-dom")
    command: list[Any] = [
        BROWSER,
        *options,
        "--hide-scrollbars",
        "--virtual-time-budget=5000",
        f"--user-data-dir={tmp_path}/p",
        place.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title is not None, done.stderr[-500:]
    seen = json.loads(title[1].replace("&quot;", '"'))
    assert seen["document"] == seen["window"] == width and 0 <= seen["first"] <= 2
    assert (seen["requests"], seen["broken"], seen["hidden"], seen["sections"]) == (0, 0, [], 10)
    assert "CONSOLE" not in done.stderr
