"""headrace probe and headrace bench io from outside."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from command import BAD_INPUT, COMMAND, DOES_NOT_FIT, INTERRUPTED, USAGE, CommandTest, interrupt


class ProbeSetup(CommandTest):
    def setUp(self):
        super().setUp()
        self.profiles = self.folder / "profiles"
        self.target = self.folder / "target"
        self.target.mkdir()
        (self.target / "mine").write_text("untouched")
        os.environ["HEADRACE_PROFILES"] = str(self.profiles)
        self.addCleanup(os.environ.pop, "HEADRACE_PROFILES")

    def check_target(self):
        """Nothing but the user's file is there, and that is as it was."""
        self.assertEqual([p.name for p in self.target.iterdir()], ["mine"])
        self.assertEqual((self.target / "mine").read_text(), "untouched")


class ProbeTest(ProbeSetup):
    def probe(self, *arguments):
        return self.check_ok("probe", "--path", self.target, "--quick", "--seconds", "2",
                             "--size", "128MiB", *arguments)

    def test_prints_a_table_and_stores_a_profile(self):
        report = self.folder / "report.json"
        begin = time.time()
        output = self.probe("--json", report).stdout
        self.assertLess(time.time() - begin, 30)
        for text in ["file system", "device", "wear", "mixed", "by bytes in flight", "best (*)",
                     "p99.9", "submission       interrupt", "sq_poll", "io_poll", "page cache",
                     "new space", "sustained write", "duplex"]:
            self.assertIn(text, output)
        self.check_target()
        names = sorted(path.suffix for path in self.profiles.iterdir())
        self.assertEqual(names, [".json", ".pb"])
        stored = json.loads(next(self.profiles.glob("*.json")).read_text())
        self.assertEqual(json.loads(report.read_text()), stored)
        (storage,) = stored["storage"]
        self.assertEqual(storage["path"], str(self.target))
        self.assertEqual(next(self.profiles.glob("*.pb")).stem, storage["key"])
        self.assertIn(storage["best"], storage["points"])
        self.assertGreater(storage["best"]["mixed_rate"], 0)
        block = output[output.index("{\n"):]
        block = json.loads(block[: block.index("\n}") + 2])
        self.assertEqual(block["aio"]["block_size"], int(storage["best"]["block_size"]))
        self.assertEqual(block["aio"]["queue_depth"], storage["best"]["queue_depth"])

    def test_the_aio_block_works_in_a_training(self):
        output = self.probe().stdout
        block = output[output.index("{\n"):]
        block = json.loads(block[: block.index("\n}") + 2])
        self.check_ok("train", "--model", self.init_model(), "--data", self.write_text(),
                      "--config", self.write_config(**block), "--output", self.folder / "output",
                      "--nvme-path", self.folder, "--host-memory", "512MiB", "--steps", 1,
                      "--seq-len", 64)

    def test_plot_without_utf8_is_ascii(self):
        environment = {**os.environ, "LC_ALL": "C"}
        result = subprocess.run(
            [COMMAND, "probe", "--path", self.target, "--quick", "--seconds", "2",
             "--size", "64MiB"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, timeout=120,
            check=True)
        result.stdout.decode("ascii")
        self.assertIn(b"##", result.stdout)

    def test_fio_is_compared_or_its_absence_told(self):
        output = self.probe("--compare-fio").stdout
        line = output[output.index("against fio"):].splitlines()[0]
        if shutil.which("fio"):
            self.assertRegex(line, r"read .* here, .* fio: \d+\.\d\dx")
        else:
            self.assertIn("apt-get install fio", line)
        self.check_target()

    def test_a_damaged_profile_is_kept(self):
        self.probe()
        (profile,) = self.profiles.glob("*.pb")
        profile.write_bytes(b"damaged")
        self.assertIn(str(profile), self.probe().stderr)
        (kept,) = self.profiles.glob("*.kept-1")
        self.assertEqual(kept.read_bytes(), b"damaged")
        self.assertGreater(profile.stat().st_size, 100)

    def test_a_memory_file_system_is_named(self):
        if not pathlib.Path("/dev/shm").is_dir():
            self.skipTest("there is no /dev/shm")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            output = self.check_ok("probe", "--path", folder, "--quick", "--seconds", "2",
                                   "--size", "64MiB").stdout
            self.assertIn("no O_DIRECT", output)
            self.assertIn("tmpfs", output)
            self.assertEqual(os.listdir(folder), [])

    def test_all_measures_the_machine(self):
        output = self.check_ok("probe", "--all", "--seconds", "2").stdout
        for text in ["memory ", "CPU optimizer", "matrix products", "copies"]:
            self.assertIn(text, output)
        (profile,) = self.profiles.glob("machine-*.json")
        machine = json.loads(profile.read_text())["machine"]
        self.assertGreater(machine["matmul"][0]["flops_per_second"], 0)
        self.assertTrue(profile.with_suffix(".pb").exists())

    def test_interrupt_leaves_nothing(self):
        for delay in [0.05, 0.5, 1.5]:
            process = subprocess.Popen(
                [COMMAND, "probe", "--path", self.target, "--size", "256MiB"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(delay)
            interrupt(process)
            _, errors = process.communicate(timeout=60)
            # Before the handler is installed the signal itself ends the process.
            self.assertIn(process.returncode, [INTERRUPTED, -signal.SIGINT], errors)
            if delay > 0.1:
                self.assertEqual(process.returncode, INTERRUPTED, errors)
            self.check_target()
            self.assertFalse(list(self.profiles.glob("*")))

    def test_what_cannot_work_is_refused(self):
        self.check_fails(DOES_NOT_FIT, ["needs", "are free"], "probe", "--path", self.target,
                         "--size", "1000TiB")
        self.check_fails(BAD_INPUT, ["/no/such/folder"], "probe", "--path", "/no/such/folder")
        self.check_fails(BAD_INPUT, ["size of the probe file"], "probe", "--path", self.target,
                         "--size", "1KiB")
        self.check_fails(USAGE, ["--path"], "probe")
        self.check_target()


class BenchTest(ProbeSetup):
    def bench(self, *arguments):
        return self.check_ok("bench", "io", "--folder", self.target, "--io_size", "8M",
                             "--loops", 2, *arguments)

    def test_prints_the_lines_of_ds_io(self):
        for direction, flags in [("Write", []), ("Read", ["--read"])]:
            output = self.bench("--validate", "--multi_process", 2, *flags).stdout
            for line in [f"Task {direction} Latency = ", f"Task {direction} Speed = ",
                         f"E2E {direction} Latency = ", f"E2E {direction} Speed = "]:
                self.assertIn(line, output)
            self.assertIn("2^30", output)
            self.assertIn("contents compared", output)
            self.check_target()

    def test_every_flag_of_ds_io_is_known(self):
        output = self.bench(
            "--fast_io_size", "16M", "--block_size", "1M", "--queue_depth", 8, "--single_submit",
            "--sequential_requests", "--engine", "aio_basic", "--io_parallel", 2, "--gpu",
            "--use_gds", "--slow_bounce_buffer", "--torch_legacy_save",
            "--use_accelerator_pin_memory", "--warmup_loops", 0, "--include_warmup_time",
            "--different_file_each_iteration").stdout
        for flag in ["--fast_io_size", "--single_submit", "--engine", "--gpu", "--use_gds",
                     "--slow_bounce_buffer", "--torch_legacy_save", "--use_accelerator_pin_memory"]:
            self.assertIn(f"{flag} has no effect", output)
        self.check_target()

    def test_mappings_are_tasks(self):
        output = self.check_ok("bench", "io", "--folder_to_device_mapping", f"{self.target}:0",
                               f"{self.target}:1", "--io_size", "4M", "--loops", 1).stdout
        self.assertIn("2 x 4.00 MiB", output)
        self.check_target()

    def test_what_would_mislead_is_refused(self):
        self.check_fails(USAGE, ["measures PyTorch"], "bench", "io", "--folder", self.target,
                         "--io_size", "4M", "--engine", "torch_io")
        self.check_fails(DOES_NOT_FIT, ["of memory"], "bench", "io", "--folder", self.target,
                         "--io_size", "100000G")
        self.check_fails(USAGE, ["--folder"], "bench", "io", "--io_size", "4M")
        self.check_target()


if __name__ == "__main__":
    unittest.main()
