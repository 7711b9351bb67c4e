"""headrace trace: record, show and compare, from outside."""

import json
import unittest

from command import BAD_INPUT, USAGE, CommandTest

DIFFERENT = 1


class TraceTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = self.init_model()

    def record(self, name, *flags, config=None, host_memory="32MiB"):
        path = self.folder / name
        self.check_ok(
            "trace", "record", "--model", self.model, "--config", config or self.write_config(),
            "--nvme-path", self.folder / "nvme", "--device-memory", "16MiB",
            "--host-memory", host_memory, "--seq-len", 64, "--output", path, *flags)
        return path

    def show(self, path, *flags):
        return json.loads(self.check_ok("trace", "show", path, "--json", *flags).stdout)

    def speculative_config(self):
        return self.write_config(
            "speculative.json", gradient_clipping=1.0, bf16={"enabled": True},
            gradient_accumulation_steps=2)

    def test_first_round_is_what_train_does_first(self):
        (self.folder / "nvme").mkdir()
        for policy in ("optimal", "liveness", "lru"):
            with self.subTest(policy):
                config = self.write_config(headrace={"activation_nvme": True, "policy": policy})
                shown = self.show(self.record("first.trace", "--rounds", 1, config=config))
                output = self.folder / f"output-{policy}"
                self.check_ok(
                    "train", "--model", self.model, "--data", self.write_text(), "--config", config,
                    "--output", output, "--nvme-path", self.folder / "nvme", "--device-memory", "16MiB",
                    "--host-memory", "32MiB", "--seq-len", 64, "--steps", 1)
                (step,) = self.metrics(output)
                planned = step["planned_bytes"]
                self.assertEqual(planned.pop("nvme_to_device"), 0, "there is no GPU")
                moved = {lane: shown["moved"][lane]["bytes"] for lane in planned}
                self.assertEqual(moved, planned)
                self.assertEqual(shown["policy"], policy)

    def test_needs_no_weights_and_leaves_nothing(self):
        (self.model / "model.safetensors").unlink()
        before = set(self.folder.rglob("*"))
        path = self.record("step.trace", config=self.write_config("other.json"))
        self.assertEqual(set(self.folder.rglob("*")) - before, {path, self.folder / "other.json"})

    def test_json_agrees_with_itself(self):
        shown = self.show(self.record("step.trace"), "--actions", "--lanes")
        self.assertEqual(shown["violations"], [])
        self.assertEqual(shown["round"], 4)
        lanes = {}
        for action in shown["actions"]:
            if "lane" in action:
                lanes.setdefault(action["lane"], []).append(action)
                self.assertLessEqual(action["begin"], action["end"])
                for before in action["after"]:
                    end = shown["actions"][before].get("end", 0)
                    self.assertLessEqual(end, action["begin"] + 1e-12)
        last = max(a["end"] for a in shown["actions"] if "end" in a)
        self.assertEqual(last, shown["seconds"])
        for figure in shown["moved"].values():
            self.assertGreaterEqual(figure["bytes"], figure["bound"])
        for tier in ("device", "host"):
            self.assertLessEqual(shown["peak"][tier], shown["budget"][tier])
        self.assertGreaterEqual(shown["seconds"], shown["bound_seconds"])
        operations = [a for a in shown["actions"] if a["kind"] == "operation"]
        self.assertEqual(len(operations), shown["operations"])
        for lane, entry in shown["lanes"].items():
            slices = entry["busy_shares"]
            busy = sum(slices) * shown["seconds"] / len(slices)
            self.assertAlmostEqual(busy, entry["busy_seconds"], delta=1e-9 + 1e-6 * busy)
            if entry["operations"]:
                self.assertEqual(len(lanes[lane]), entry["operations"])

    def test_text(self):
        path = self.record("step.trace")
        text = self.check_ok("trace", "show", path).stdout
        for word in ("operations", "nvme", "bound", "peak on device", "busiest lane"):
            self.assertIn(word, text)
        self.assertNotIn("|", text)
        rows = [l for l in self.check_ok("trace", "show", path, "--lanes").stdout.splitlines()
                if "|" in l]
        self.assertEqual(len(rows), 6)
        self.assertEqual({len(row.split("|")[1]) for row in rows}, {72})
        listed = self.check_ok("trace", "show", path, "--actions").stdout.splitlines()
        count = len(self.show(path, "--actions")["actions"])
        self.assertIn(f" {count - 1} ", listed[-1])

    def test_every_step_can_be_chosen(self):
        config = self.speculative_config()
        shown = {step: self.show(self.record("x.trace", "--step", step, config=config,
                                             host_memory="64MiB"))
                 for step in ("training", "speculative", "redo", "evaluation")}
        self.assertEqual({s: t["step"] for s, t in shown.items()}, {s: s for s in shown})
        self.assertEqual(self.show(self.record("x.trace", config=config, host_memory="64MiB")),
                         shown["speculative"])
        for trace in shown.values():
            self.assertEqual(trace["violations"], [])
        self.assertEqual(shown["redo"]["lanes"]["compute"]["operations"], 0)
        self.assertEqual(shown["evaluation"]["lanes"]["cpu_optimizer"]["operations"], 0)
        self.check_fails(BAD_INPUT, ["no redo step", "optimizer_overlap"], "trace", "record",
                         "--model", self.model, "--config", self.write_config(), "--nvme-path",
                         self.folder / "nvme", "--device-memory", "16MiB", "--host-memory", "32MiB",
                         "--seq-len", 64, "--output", self.folder / "x", "--step", "redo")

    def test_compare(self):
        config = self.speculative_config()
        first = self.record("first.trace", config=config, host_memory="64MiB")
        same = self.record("same.trace", config=config, host_memory="64MiB")
        self.assertIn("equal", self.check_ok("trace", "compare", first, same).stdout)
        other = self.record("other.trace", "--step", "training", config=config, host_memory="64MiB")
        result = self.run_command("trace", "compare", first, other)
        self.assertEqual(result.returncode, DIFFERENT, result.stderr)
        self.assertEqual(result.stderr, "")
        for text in ("diverge first at", "rejoin at", "speculative -> training", "nvme read",
                     "peak in host", "predicted"):
            self.assertIn(text, result.stdout)
        larger = self.record("larger.trace", config=config, host_memory="128MiB")
        result = self.run_command("trace", "compare", first, larger)
        self.assertEqual(result.returncode, DIFFERENT, result.stderr)
        self.assertIn("64.0 MiB -> 128 MiB", result.stdout)
        self.assertIn("Exit codes: 0 equal", self.check_ok("trace", "compare", "--help").stdout)

    def test_other_files_are_refused(self):
        path = self.record("step.trace")
        data = path.read_bytes()
        bad = self.folder / "bad.trace"
        for content, text in [
            (b"", "not a saved trace"),
            (b"{}", "not a saved trace"),
            (data[:20], "truncated"),
            (data[:-1], "truncated"),
            (data + b"x", "damaged"),
            (data[:100] + bytes([data[100] ^ 1]) + data[101:], "damaged"),
            (data[:8] + b"\x02" + data[9:], "format 2"),
        ]:
            with self.subTest(text):
                bad.write_bytes(content)
                self.check_fails(BAD_INPUT, [str(bad), text], "trace", "show", bad)
                self.check_fails(BAD_INPUT, [str(bad), text], "trace", "compare", path, bad)
        with open(bad, "wb") as file:
            file.truncate((1 << 30) + 1)
        self.check_fails(BAD_INPUT, [str(bad), "at most"], "trace", "show", bad)
        missing = self.folder / "missing"
        self.check_fails(BAD_INPUT, [str(missing)], "trace", "show", missing)
        self.check_fails(USAGE, [], "trace")
        self.check_fails(USAGE, ["--output"], "trace", "record", "--model", self.model, "--config",
                         self.write_config())


if __name__ == "__main__":
    unittest.main()
