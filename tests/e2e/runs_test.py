"""Run directories seen from outside: runs side by side, what is not ours, runs that go wrong."""

import json
import os
import signal
import subprocess
import unittest

from command import BAD_INPUT, COMMAND, INTERRUPTED, CommandTest, wait_for


class RunsTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = self.init_model()
        self.text = self.write_text()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()

    def arguments(self, output, steps=4, *flags, **config):
        name = f"{output}.json"
        return ["train", "--model", self.model, "--data", self.text, "--config",
                self.write_config(name, **{"bf16": {"enabled": True}, **config}), "--output", self.folder / output,
                "--nvme-path", self.nvme, "--host-memory", "32MiB", "--steps", steps, "--seq-len", 64, *flags]  # fmt: skip

    def start(self, *arguments):
        process = subprocess.Popen([COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)  # fmt: skip
        self.addCleanup(process.kill)
        return process

    def weights(self, output):
        return (self.folder / output / "model.safetensors").read_bytes()

    def run_directory(self, output):
        (directory,) = json.loads((self.folder / output / "run.json").read_text())["directories"]
        return self.nvme / os.path.basename(directory)

    def test_two_runs_share_a_path(self):
        self.check_ok(*self.arguments("alone"))
        pair = {name: self.start(*self.arguments(name)) for name in ("one", "two")}
        for process in pair.values():
            out, error = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, out + error)
        for name in pair:
            self.assertEqual(self.weights(name), self.weights("alone"))
            self.check_ok("verify", "--run", self.folder / name)
        self.assertEqual(len(list(self.nvme.iterdir())), 3, "each has its own directory")

    def test_a_run_in_use_is_not_taken_and_a_dead_one_is(self):
        self.check_ok(*self.arguments("run", 1))
        process = self.start(*self.arguments("run", 100_000))
        metrics = self.folder / "run" / "metrics.jsonl"
        self.assertTrue(wait_for(lambda: len(metrics.read_text().splitlines()) > 2))
        self.check_fails(BAD_INPUT, ["in use", str(process.pid)], *self.arguments("run", 100_000))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        self.assertIn(f"process {process.pid}", (self.run_directory("run") / "LOCK").read_text())
        done = len(metrics.read_text().splitlines())
        self.check_ok(*self.arguments("run", done + 1))
        self.assertEqual((self.run_directory("run") / "LOCK").read_text(), "")

    def test_an_output_folder_in_use_is_not_shared(self):
        process = self.start(*self.arguments("run", 100_000))
        metrics = self.folder / "run" / "metrics.jsonl"
        self.assertTrue(wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 2))
        self.check_fails(BAD_INPUT, ["run is in use"], *self.arguments("run", 3, "--resume", "never"))
        self.assertEqual(len(list(self.nvme.iterdir())), 1, "nothing is left of the refused one")
        # The terminal is closed, unless these tests run under nohup.
        is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        process.send_signal(signal.SIGTERM if is_ignored else signal.SIGHUP)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, out + error)
        steps = [line["step"] for line in self.metrics(self.folder / "run")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.check_ok(*self.arguments("run", 3, "--resume", "never"))

    def test_what_is_not_ours_or_newer_is_refused_and_left(self):
        self.check_ok(*self.arguments("run", 1))
        directory = self.run_directory("run")
        identity = (directory / "RUN").read_text()
        for text, said in [(identity.replace("format 2", "format 3"), "format 3"),
                           ("something else\n", str(directory))]:  # fmt: skip
            (directory / "RUN").write_text(text)
            before = sorted(path.name for path in directory.iterdir())
            for command in (["verify", "--run", directory], self.arguments("run", 2)):
                self.check_fails(BAD_INPUT, [said], *command)
            self.assertEqual(sorted(path.name for path in directory.iterdir()), before)
        (directory / "RUN").write_text(identity)
        self.check_ok(*self.arguments("run", 2))

    def test_steps_that_are_skipped_in_a_row_end_the_run(self):
        """2**120 overflows whatever the gradients; each skip only halves it."""
        config = {"bf16": {"enabled": False}, "fp16": {"enabled": True, "initial_scale_power": 120, "hysteresis": 1},
                  "headrace": {"max_skipped_steps": 3, "save_interval": 1, "keep_last": 9}}  # fmt: skip
        result = self.check_fails(BAD_INPUT, ["max_skipped_steps"], *self.arguments("run", 9, **config))
        self.assertIn("3", result.stderr)
        lines = self.metrics(self.folder / "run")
        self.assertTrue(all(line["skipped"] for line in lines))
        self.assertIn(len(lines), (3, 4))
        # The state is the one that it began with.
        self.check_ok("export", "--run", self.folder / "run", "--output", self.folder / "after", "--dtype", "fp16")
        self.check_ok("import", "--input", self.model, "--output", self.folder / "first")
        self.check_ok("export", "--run", self.folder / "first", "--output", self.folder / "begin", "--dtype", "fp16")
        self.assertEqual(self.weights("after"), self.weights("begin"))


if __name__ == "__main__":
    unittest.main()
