"""The page of headrace report in headless Chromium."""

import json
import os
import pathlib
import shutil
import unittest

from browser import Browser, find_browser
from report_test import ReportBase

WIDTHS = (1280, 400)
# Where set, the screenshots of the pages are put there to be looked at.
SCREENSHOTS = os.environ.get("HEADRACE_SCREENSHOTS")


@unittest.skipUnless(find_browser(), "SKIPPED: no Chromium: ./scripts/install-deps.sh --browser")
class ReportPageTest(ReportBase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = Browser(find_browser())
        cls.addClassCleanup(cls.browser.close)

    def open(self, page, **options):
        self.browser.open(page, **options)
        self.assertEqual(self.browser.problems(), [])
        self.assertEqual(self.browser.requests(), [page.as_uri()])

    def check_layout(self, width):
        self.assertEqual(self.browser.evaluate("document.documentElement.scrollWidth"), width)
        # No text of a chart is cut off at its edges, and none is drawn over another.
        cut = self.browser.evaluate("""[...document.querySelectorAll('svg')].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(text => {
              const t = text.getBoundingClientRect();
              return t.width > 0 && (t.left < box.left - 1 || t.right > box.right + 1 ||
                                     t.top < box.top - 2 || t.bottom > box.bottom + 2);
            }).map(text => text.textContent);
          })""")
        self.assertEqual(cut, [])
        overlaps = self.browser.evaluate("""[...document.querySelectorAll('svg')].flatMap(svg => {
            const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
            return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
              p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3
            ).map(([b]) => a + ' / ' + b));
          })""")
        self.assertEqual(overlaps, [])

    def test_draws_everything_at_every_width_light_and_dark(self):
        page = self.report(self.shared / "run")
        backgrounds = set()
        for dark in (False, True):
            for width in WIDTHS:
                with self.subTest(width=width, dark=dark):
                    self.open(page, width=width, dark=dark)
                    self.check_layout(width)
                    self.assertGreaterEqual(
                        self.browser.evaluate("document.querySelectorAll('svg').length"), 9)
                    backgrounds.add((dark, self.browser.evaluate(
                        "getComputedStyle(document.body).backgroundColor")))
                    theme = "dark" if dark else "light"
                    shot = self.folder / f"report-{width}-{theme}.png"
                    self.assertGreater(len(self.browser.screenshot(shot)), 20_000)
                    if SCREENSHOTS:
                        shutil.copy(shot, pathlib.Path(SCREENSHOTS) / shot.name)
        self.assertEqual(len(backgrounds), 2)  # one for each theme

    def test_shows_the_numbers(self):
        self.open(self.report(self.shared / "run"))
        text = self.browser.evaluate("document.body.innerText")
        last = [line for line in self.metrics(self.shared / "run") if "loss" in line][-1]
        for part in ("6.43 M parameters", "8 of 8 steps", "resumed after step 4",
                     f"{last['loss']:.4g}", "CPU optimizer", "above the bound", "What goes where"):
            self.assertIn(part, text)
        self.assertEqual(self.browser.evaluate("document.title"), "Headrace report: model")

    def center(self, selector):
        return self.browser.evaluate(f"""(() => {{
            const element = document.querySelector("{selector}");
            element.scrollIntoView({{block: 'center'}});
            const box = element.getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
          }})()""")

    def test_hover_tells_values(self):
        self.open(self.report(self.shared / "run"))
        left, top, width, height = self.center("#curves svg")
        self.browser.mouse("mouseMoved", left + width - 11, top + height / 2)
        tip = self.browser.evaluate("document.getElementById('tooltip').innerText")
        last = [line for line in self.metrics(self.shared / "run") if "loss" in line][-1]
        self.assertIn("step 8", tip)
        self.assertIn(f"{last['loss']:.4g}", tip)
        left, top, width, height = self.center("#lanes svg")
        self.browser.mouse("mouseMoved", left + 130 + (width - 136) / 2, top + 12)
        tip = self.browser.evaluate("document.getElementById('tooltip').innerText")
        self.assertIn("took", tip)

    def test_lanes_zoom_by_drag_buttons_and_keys(self):
        self.open(self.report(self.shared / "run"))
        whole = self.browser.evaluate("document.querySelector('#lanes .where').textContent")
        self.assertIn("drag", whole)
        left, top, width, _ = self.center("#lanes svg")
        inner = width - 128 - 6
        self.browser.mouse("mouseMoved", left + 128 + inner * 0.25, top + 60)
        self.browser.mouse("mousePressed", left + 128 + inner * 0.25, top + 60, buttons=1)
        self.browser.mouse("mouseMoved", left + 128 + inner * 0.5, top + 60, buttons=1)
        self.browser.mouse("mouseReleased", left + 128 + inner * 0.5, top + 60)
        zoomed = self.browser.evaluate("document.querySelector('#lanes .where').textContent")
        self.assertRegex(zoomed, r"^\S+ m?s to \S+ m?s$")
        for move, expected in [("document.querySelector('[aria-label=\"Zoom in\"]').click()", None),
                               ("document.querySelector('[aria-label=\"Show the whole step\"]').click()", whole)]:
            self.browser.evaluate(move)
            shown = self.browser.evaluate("document.querySelector('#lanes .where').textContent")
            self.assertNotEqual(shown, zoomed)
            if expected:
                self.assertEqual(shown, expected)
        self.assertEqual(self.browser.problems(), [])

    def test_pages_of_less_than_a_whole_run(self):
        page = self.folder / "page.html"
        cases = {"metrics only": self.copy_run("metrics.jsonl")}
        empty = self.folder / "empty"
        empty.mkdir()
        (empty / "metrics.jsonl").write_text("")
        cases["no step yet"] = empty
        restored = self.folder / "restored"
        restored.mkdir()
        (restored / "metrics.jsonl").write_text(
            '{"step":3,"loss":null,"gradient_norm":null,"learning_rate":0.001,"loss_scale":1.0,'
            '"skipped":true}\n')
        cases["one step that was killed"] = restored
        for name, folder in cases.items():
            for width in WIDTHS:
                with self.subTest(name, width=width):
                    self.report(folder)
                    self.open(page, width=width)
                    self.check_layout(width)

    def test_markup_in_names_is_shown_as_text(self):
        folder = self.copy_run()
        report = json.loads((folder / "report.json").read_text())
        evil = "<img src=x onerror=\"document.title='taken'\"></script><script>document.title='taken'</script>"
        report["model"]["folder"] = evil
        report["settings"][evil] = evil
        (folder / "report.json").write_text(json.dumps(report))
        timeline = (folder / "timeline.json").read_text()
        (folder / "timeline.json").write_text(timeline.replace("block.1", "<b>block</b>"))
        self.open(self.report(folder))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('img, svg b').length"), 0)
        self.assertNotEqual(self.browser.evaluate("document.title"), "taken")
        self.assertIn("script", self.browser.evaluate("document.querySelector('h1').textContent"))


if __name__ == "__main__":
    unittest.main()
