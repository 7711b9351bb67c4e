"""The csv_monitor block: read back with csv and compared with metrics.jsonl; the fields of that file
compared with docs/monitoring.md. What tensorboard reads: tensorboard_test.py."""

import csv
import re
import unittest

from command import REPOSITORY, CommandTest

BATCH = 2


class MonitoredRun(CommandTest):
    """A run with both blocks, and what its curves have to be."""

    def setUp(self):
        super().setUp()
        self.model = self.init_model()
        self.text = self.write_text()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()
        self.output = self.folder / "output"
        block = {"enabled": True, "output_path": str(self.folder / "logs")}
        self.config = self.write_config(
            tensorboard={**block, "job_name": "tb"},
            csv_monitor={**block, "job_name": "csv"},
            wall_clock_breakdown=True,
            memory_breakdown=True,
            fp16={"enabled": True, "initial_scale_power": 12, "loss_scale_window": 3},
            optimizer={"type": "AdamW", "params": {"lr": 1e-3}},
            scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 9,
                                                      "warmup_type": "linear"}},
        )

    def train(self, steps, *flags):
        return self.check_ok(
            "train", "--model", self.model, "--data", self.text, "--config", self.config,
            "--output", self.output, "--nvme-path", self.nvme, "--host-memory", "32MiB",
            "--device-memory", "16MiB", "--steps", steps, "--seq-len", 32,
            "--validation-fraction", "0.1", "--eval-steps", 2, *flags)

    def steps(self):
        return [m for m in self.metrics(self.output) if "loss" in m]

    def expected(self):
        """The curves that metrics.jsonl implies, at the samples where DeepSpeed puts them."""
        steps = self.steps()
        return {
            "Train/Samples/train_loss": [[BATCH * (m["step"] - 1), m["loss"]] for m in steps],
            "Train/Samples/elapsed_time_ms_forward": [
                [BATCH * m["step"], m["seconds_by_phase"]["forward"] * 1e3] for m in steps],
            "Headrace/gradient_norm": [[BATCH * m["step"], m["gradient_norm"]] for m in steps],
            "Headrace/bytes/nvme_read": [
                [BATCH * m["step"], m["bytes"]["nvme_read"]] for m in steps],
            "Headrace/validation_loss": [
                [BATCH * m["step"], m["validation_loss"]] for m in self.metrics(self.output)
                if "validation_loss" in m],
            # Of the next step: what the step before has left to it.
            "Train/Samples/lr": [
                [BATCH * (m["step"] - 1), m["learning_rate"]] for m in steps[1:]],
            "Train/Samples/loss_scale": [
                [BATCH * (m["step"] - 1), m["loss_scale"]] for m in steps[1:]],
        }

    def csv_curves(self):
        curves = {}
        for path in (self.folder / "logs" / "csv").glob("*.csv"):
            with open(path, encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))
            self.assertEqual(rows[0][0], "step", path)
            self.assertTrue(path.stem.endswith(rows[0][1]), path)
            curves[path.stem] = [[int(step), float(value)] for step, value in rows[1:]]
        return curves

    def check_curves(self, found, name_of):
        for tag, curve in self.expected().items():
            points = found[name_of(tag)]
            # The last lr and loss scale are those of a step that has not been.
            points = points[: len(curve)] if tag.endswith(("/lr", "/loss_scale")) else points
            self.assertEqual([step for step, _ in points], [step for step, _ in curve], tag)
            for (_, value), (_, wanted) in zip(points, curve):
                self.assertAlmostEqual(value, wanted, delta=1e-6 * abs(wanted) + 1e-12, msg=tag)


class MonitorTest(MonitoredRun):
    def test_csv_over_a_resumption(self):
        self.train(4)
        self.train(7)
        self.check_curves(self.csv_curves(), lambda tag: tag.replace("/", "_"))
        lr = self.csv_curves()["Train_Samples_lr"]
        self.assertEqual([step for step, _ in lr], [BATCH * i for i in range(1, 8)])

    def test_breakdowns_are_printed(self):
        out = self.train(3).stdout
        steps = self.steps()
        times = re.findall(
            r"time \(ms\) +forward ([\d.]+) \| backward ([\d.]+) \| step ([\d.]+)", out)
        self.assertEqual(len(times), len(steps))
        for (forward, backward, step), metrics in zip(times, steps):
            phases = metrics["seconds_by_phase"]
            self.assertAlmostEqual(float(forward), phases["forward"] * 1e3, delta=0.01)
            self.assertAlmostEqual(float(backward), phases["backward"] * 1e3, delta=0.01)
            self.assertAlmostEqual(float(step), phases["step"] * 1e3, delta=0.01)
            self.assertAlmostEqual(sum(phases.values()), metrics["seconds"], delta=1e-6)
        for tier in ("device", "host"):
            lines = re.findall(rf"memory +{tier} .* of ([\d.]+) MiB \((.*)\)", out)
            self.assertEqual(len(lines), len(steps), out)
            self.assertIn("workspace", lines[0][1])
            if tier == "host":
                self.assertIn("optimizer state", lines[0][1])
        self.assertEqual(len(re.findall(r"memory +resident .* on nvme", out)), len(steps))

    def test_the_bound_is_named_once_rates_are_known(self):
        out = self.train(4).stdout
        lines = [line for line in out.splitlines() if re.match(r"step +\d+  loss", line)]
        self.assertEqual(["of bound" in line for line in lines], [False, False, True, True])

    def test_every_field_is_explained_and_none_else(self):
        self.train(2)
        docs = (REPOSITORY / "docs" / "monitoring.md").read_text()
        section = docs.split("## metrics.jsonl")[1].split("\n## ")[0]
        explained = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
        written = set()
        for line in self.metrics(self.output):
            for key, value in line.items():
                written.add(key)
                if isinstance(value, dict):
                    written |= {f"{key}.{part}" for part in value}
        self.assertEqual(explained, written)

    def test_every_tag_is_explained(self):
        self.train(3)
        docs = (REPOSITORY / "docs" / "monitoring.md").read_text()
        for name in self.csv_curves():
            tags = [tag for tag in re.findall(r"`((?:Train|Headrace)/[^`]+)`", docs)
                    if tag.replace("/", "_") == name]
            self.assertEqual(len(tags), 1, name)


if __name__ == "__main__":
    unittest.main()
