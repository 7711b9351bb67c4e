"""headrace train --timeline, and the timeline that every run keeps of one step."""

import unittest

import trace_events
from command import IO_FAILURE, USAGE, CommandTest

PARTS = ("nvme_read", "nvme_write", "host_to_device", "device_to_host")


class TimelineTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = self.init_model()
        self.text = self.write_text()
        (self.folder / "nvme").mkdir()

    def arguments(self, steps, *flags, config=None, device=True, output="output"):
        memory = ["--device-memory", "16MiB"] if device else []
        return ["train", "--model", self.model, "--data", self.text, "--config",
                config or self.write_config(), "--output", self.folder / output, "--nvme-path",
                self.folder / "nvme", "--host-memory", "32MiB", "--seq-len", 64, "--steps", steps,
                *memory, *flags]

    def train(self, *arguments, **options):
        return self.check_ok(*self.arguments(*arguments, **options))

    def check_steps(self, path, output, numbers):
        """The file holds these steps, and agrees with metrics.jsonl on each."""
        events = trace_events.read_events(path)
        trace_events.check_tracks(events)
        steps = trace_events.spans(events, "step")
        self.assertEqual([step["args"]["step"] for step in steps], numbers)
        metrics = {line["step"]: line for line in self.metrics(output) if "loss" in line}
        for step in steps:
            line = metrics[step["args"]["step"]]
            self.assertAlmostEqual(step["dur"] * 1e-6, line["seconds"], delta=1e-8)
            sums = trace_events.seconds_by_cause(events, step)
            causes = {cause.removeprefix("wait_"): seconds
                      for cause, seconds in line["seconds_by_cause"].items() if cause != "total"}
            # A part is a sum of hundreds of spans, each printed to the nanosecond.
            for cause, seconds in causes.items():
                self.assertAlmostEqual(sums[cause], seconds, delta=1e-6, msg=cause)
            self.assertEqual(set(sums) - set(causes), set())
            moved = trace_events.bytes_by_lane(events, step)
            # Without a GPU nothing comes to it straight from nvme.
            self.assertEqual({part: moved[part] for part in PARTS} | {"nvme_to_device": 0},
                             line["bytes"])
        return events, steps

    def test_steps_agree_with_metrics(self):
        config = self.write_config(gradient_accumulation_steps=2, gradient_clipping=1.0)
        path = self.folder / "steps.json"
        self.train(5, "--timeline", path, "--timeline-steps", "2-4", config=config)
        events, steps = self.check_steps(path, self.folder / "output", [2, 3, 4])
        for before, after in zip(steps, steps[1:]):
            self.assertLessEqual(before["ts"] + before["dur"], after["ts"])
        # Every lane has work of known names in each step.
        for step in steps:
            for lane, part in [("compute", "forward"), ("cpu_optimizer", "update"),
                               ("nvme_read", "weights"), ("host_to_device", "weights"),
                               ("device_to_host", "activation"), ("nvme_write", "commit")]:
                names = [event["name"] for event in trace_events.spans(events, lane)
                         if trace_events.inside(event, step)]
                self.assertTrue(any(part in name for name in names), (lane, part, names[:5]))

    def test_memory_stays_within_budgets_and_slots_add_up(self):
        path = self.folder / "steps.json"
        self.train(3, "--timeline", path)
        events, _ = self.check_steps(path, self.folder / "output", [3])
        counters = [e for e in events if e["ph"] == "C"]
        for tier, budget in [("device", 16 << 20), ("host", 32 << 20)]:
            levels = [e["args"] for e in counters if e["name"].startswith(f"{tier} memory of")]
            self.assertGreater(len(levels), 10)
            for level in levels:
                self.assertEqual(level["used"] + level["free"], budget)
                self.assertGreaterEqual(level["free"], 0)
            self.assertGreater(len({level["used"] for level in levels}), 1)
        in_flight = [e["args"] for e in counters if e["name"] == "nvme transfers in flight"]
        self.assertEqual(in_flight[-1], {"read": 0, "write": 0})
        self.assertGreaterEqual(max(level["read"] for level in in_flight), 1)
        self.assertGreaterEqual(min(min(level.values()) for level in in_flight), 0)

    def test_default_steps_and_the_step_that_is_kept(self):
        path = self.folder / "steps.json"
        output = self.folder / "output"
        self.train(6, "--timeline", path)
        self.check_steps(path, output, [4, 5, 6])
        self.check_steps(output / "timeline.json", output, [4])
        # The run goes on: now its fourth step is the tenth.
        self.train(10, "--timeline", path)
        self.check_steps(path, output, [10])
        self.check_steps(output / "timeline.json", output, [10])
        kept = (output / "timeline.json").read_bytes(), (output / "report.json").read_bytes()
        self.train(10)  # nothing is left to do
        self.assertEqual(
            kept, ((output / "timeline.json").read_bytes(), (output / "report.json").read_bytes()))

    def test_without_a_device_tier(self):
        output = self.folder / "output"
        self.train(1, device=False)
        events, _ = self.check_steps(output / "timeline.json", output, [1])
        self.assertEqual(trace_events.spans(events, "host_to_device"), [])
        self.assertFalse([e for e in events if e["name"].startswith("device memory")])

    def test_steps_that_are_not_run(self):
        path = self.folder / "steps.json"
        result = self.train(2, "--timeline", path, "--timeline-steps", "7")
        self.assertIn("holds no step", result.stdout + result.stderr)
        self.assertEqual(trace_events.spans(trace_events.read_events(path), "step"), [])

    def test_wrong_arguments(self):
        path = self.folder / "steps.json"
        for text in ("0", "5-3", "3-", "-3", "x", "3-5-7", "1.5"):
            with self.subTest(text):
                self.check_fails(USAGE, ["--timeline-steps", text, "3-5"],
                                 *self.arguments(2, "--timeline", path, f"--timeline-steps={text}"))
        self.check_fails(USAGE, ["--timeline"], *self.arguments(2, "--timeline-steps", "3"))
        missing = self.folder / "missing" / "steps.json"
        self.check_fails(IO_FAILURE, [str(missing)], *self.arguments(2, "--timeline", missing))


if __name__ == "__main__":
    unittest.main()
