"""headrace report: what it reads, what it refuses, and what the page holds."""

import json
import re
import shutil
import unittest

from command import BAD_INPUT, IO_FAILURE, USAGE, CommandTest


def page_data(page):
    """The data in a page, read as a browser would: the text of the script element."""
    text = page.read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(data)


class ReportBase(CommandTest):
    @classmethod
    def setUpClass(cls):
        """One run that all tests look at: three tiers, validation, resumed after four steps."""
        super().setUpClass()
        run = cls("setUp")
        run.setUp()
        cls.addClassCleanup(run.doCleanups)
        cls.shared = run.folder
        run.init_model()
        run.write_text()
        (run.folder / "nvme").mkdir()
        run.train("run", 4)
        run.train("run", 8)

    def train(self, output, steps, *flags):
        config = self.write_config(gradient_clipping=1.0, bf16={"enabled": True})
        self.check_ok("train", "--model", self.folder / "model", "--data", self.folder / "text.txt",
                      "--config", config, "--output", self.folder / output, "--nvme-path",
                      self.folder / "nvme", "--device-memory", "16MiB", "--host-memory", "32MiB",
                      "--seq-len", 64, "--steps", steps, "--eval-steps", 2,
                      "--validation-fraction", 0.1, *flags)

    def copy_run(self, *names):
        """A folder with these files of the run, all by default."""
        folder = self.folder / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in names or ("metrics.jsonl", "report.json", "timeline.json"):
            shutil.copy(self.shared / "run" / name, folder / name)
        return folder

    def report(self, folder, *flags):
        page = self.folder / "page.html"
        self.check_ok("report", folder, "--output", page, *flags)
        return page


class ReportTest(ReportBase):
    def test_holds_the_numbers_of_the_run(self):
        data = page_data(self.report(self.shared / "run"))
        lines = self.metrics(self.shared / "run")
        steps = [line for line in lines if "loss" in line]
        self.assertEqual(data["steps"]["step"], list(range(1, 9)))
        self.assertEqual(data["steps"]["last"], 8)
        for name in ("loss", "gradient_norm", "learning_rate", "tokens_per_second", "seconds"):
            self.assertEqual(data["steps"][name], [line[name] for line in steps])
        self.assertEqual(data["steps"]["bytes.nvme_read"],
                         [line["bytes"]["nvme_read"] for line in steps])
        self.assertEqual(data["steps"]["seconds_by_cause.nvme_read"],
                         [line["seconds_by_cause"]["wait_nvme_read"] for line in steps])
        self.assertEqual(data["evaluations"], [[line["step"], line["validation_loss"]]
                                               for line in lines if "validation_loss" in line])
        self.assertEqual(data["timeline"]["step"], 8)  # the fourth since it went on
        self.assertEqual(data["report"]["resumed_from"], 4)
        self.assertEqual(data["report"]["state"], "finished")
        gap = data["report"]["gap"]
        self.assertGreaterEqual(gap["nvme_bytes"], gap["nvme_bound_bytes"])
        self.assertGreater(gap["nvme_bound_bytes"], 0)

    def test_timeline_is_that_of_the_file(self):
        data = page_data(self.report(self.shared / "run"))["timeline"]
        events = json.loads((self.shared / "run" / "timeline.json").read_text())["traceEvents"]
        spans = [e for e in events if e["ph"] == "X" and e["cat"] not in ("step", "charge")]
        shown = [(lane["lane"], e["name"], e["begin"], e.get("bytes", 0))
                 for lane in data["lanes"] for e in lane["events"]]
        self.assertEqual(len(shown), len(spans))
        expected = [(e["cat"], e["name"], e["ts"] / 1e6, e["args"].get("bytes", 0)) for e in spans]
        self.assertEqual(sorted(shown), sorted(expected))
        self.assertEqual([m["tier"] for m in data["memory"]], ["device", "host"])
        charged = sum(c["end"] - c["begin"] for c in data["charges"])
        self.assertAlmostEqual(charged, data["seconds"], delta=1e-6)

    def test_default_output_is_in_the_folder(self):
        folder = self.copy_run()
        self.assertIn("report.html", self.check_ok("report", folder).stdout)
        self.assertTrue((folder / "report.html").is_file())

    def test_a_run_in_progress(self):
        folder = self.copy_run("metrics.jsonl")
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:40])
        data = page_data(self.report(folder))
        self.assertEqual(data["steps"]["last"], json.loads(lines[2])["step"])
        self.assertIsNone(data["timeline"])
        self.assertIsNone(data["report"])
        (folder / "metrics.jsonl").write_text("")
        self.assertEqual(page_data(self.report(folder))["steps"]["step"], [])

    def test_many_steps_become_points(self):
        folder = self.copy_run("metrics.jsonl")
        line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
        with open(folder / "metrics.jsonl", "w") as file:
            for step in range(1, 4102):
                file.write(json.dumps({**line, "step": step, "loss": float(step)}) + "\n")
        steps = page_data(self.report(folder))["steps"]
        self.assertEqual(steps["grouped"], 3)
        self.assertEqual(steps["step"][:2], [3, 6])
        self.assertEqual(steps["loss"][:2], [2, 5])  # means of 1 to 3 and 4 to 6
        self.assertEqual(steps["step"][-1], 4101)
        self.assertEqual(len(steps["loss"]), len(steps["step"]))

    def test_clear_errors(self):
        missing = self.folder / "missing"
        self.check_fails(BAD_INPUT, [str(missing), "not a folder"], "report", missing)
        empty = self.folder / "empty"
        empty.mkdir()
        self.check_fails(BAD_INPUT, [str(empty), "metrics.jsonl", "--output"], "report", empty)
        self.check_fails(USAGE, ["RUN"], "report")
        folder = self.copy_run()
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        for broken, text in [("{\"step\": 2, \"lo\n", "line 2 is not a JSON object"),
                             ("[1]\n", "line 2 is not a JSON object"),
                             ("{\"loss\": 1}\n", "line 2 has no step"),
                             ("{\"step\": \"2\"}\n", "line 2 has no step"),
                             (lines[0], "line 2 is of step 1, after one of step 1")]:
            with self.subTest(broken):
                metrics.write_text(lines[0] + broken + "".join(lines[1:]))
                self.check_fails(BAD_INPUT, [str(metrics), text], "report", folder)
        metrics.write_text("".join(lines))
        for name, broken, text in [
                ("timeline.json", "{", "not the timeline of a step"),
                ("timeline.json", "{\"traceEvents\":[]}", "not the timeline of a step"),
                ("timeline.json", '{"otherData":{"budgets":{}},"traceEvents":[]}', "no step"),
                ("report.json", "{}", "not a description"),
                ("report.json", '{"format": 99}', "format 99"),
                ("report.json", '{"format": 1}', "has no steps")]:
            with self.subTest(name=name, broken=broken):
                folder = self.copy_run()
                (folder / name).write_text(broken)
                self.check_fails(BAD_INPUT, [str(folder / name), text], "report", folder)
        page = self.folder / "missing" / "page.html"
        self.check_fails(IO_FAILURE, [str(page)], "report", self.copy_run(), "--output", page)

    def test_markup_in_names_stays_text(self):
        folder = self.copy_run()
        report = json.loads((folder / "report.json").read_text())
        evil = "</script><script>document.title='taken'</script><!--<script>&\"'"
        report["model"]["folder"] = evil
        report["settings"][evil] = evil
        (folder / "report.json").write_text(json.dumps(report))
        page = self.report(folder)
        text = page.read_text()
        self.assertEqual(text.count("<script"), 2)
        self.assertEqual(text.count("</script>"), 2)
        self.assertEqual(page_data(page)["report"]["settings"][evil], evil)

    def test_refers_to_nothing_outside(self):
        text = self.report(self.shared / "run").read_text()
        namespace = "http://www.w3.org/2000/svg"  # a name, not fetched
        self.assertEqual(set(re.findall(r"https?://[^\s'\"<>)]+", text)), {namespace})
        self.assertNotRegex(text, r"<(script|img|link|iframe)[^>]+(src|href)=")
        self.assertNotRegex(text, r"@import|url\(")


if __name__ == "__main__":
    unittest.main()
