"""The headrace command from outside: exit codes, messages, and what is left on disk."""

import json
import os
import re
import shutil
import struct
import subprocess
import unittest

from command import (
    BAD_INPUT,
    COMMAND,
    DOES_NOT_FIT,
    INTERRUPTED,
    IO_FAILURE,
    REPOSITORY,
    USAGE,
    CommandTest,
    interrupt,
    read_safetensors,
    wait_for,
)


class TrainSetup(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = self.init_model()
        self.text = self.write_text()
        self.config = self.write_config()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()
        self.output = self.folder / "output"

    def arguments(self, **changes):
        values = {
            "model": self.model,
            "data": self.text,
            "config": self.config,
            "output": self.output,
            "nvme-path": self.nvme,
            "host-memory": "32MiB",
            "device-memory": "16MiB",
            "steps": 3,
            "seq-len": 64,
        }
        values.update({key.replace("_", "-"): value for key, value in changes.items()})
        result = ["train"]
        for key, value in values.items():
            if value is not None:
                result += [f"--{key}", value]
        return result

    def assert_nothing_left(self):
        self.assertEqual(list(self.nvme.iterdir()), [], "the nvme folder is empty again")
        self.assertFalse(self.output.exists())


class TrainTest(TrainSetup):
    def test_trains_and_writes_what_transformers_reads(self):
        result = self.check_ok(*self.arguments(steps=30))
        metrics = self.metrics(self.output)
        self.assertEqual([m["step"] for m in metrics], list(range(1, 31)))
        self.assertLess(metrics[-1]["loss"], metrics[0]["loss"] - 0.5)
        self.assertGreater(metrics[-1]["bytes"]["nvme_read"], 0)
        self.assertGreater(metrics[-1]["bytes"]["nvme_write"], 0)
        self.assertEqual(metrics[-1]["bytes"], metrics[-1]["planned_bytes"])
        self.assertGreater(metrics[-1]["predicted_seconds"], 0)
        for m in metrics:
            causes = dict(m["seconds_by_cause"])
            total = causes.pop("total")
            self.assertAlmostEqual(sum(causes.values()), total, delta=1e-3 + 0.01 * total)
        before = read_safetensors(self.model / "model.safetensors")
        after = read_safetensors(self.output / "model.safetensors")
        self.assertEqual(before.keys(), after.keys())
        for name, (_, shape, data) in before.items():
            self.assertEqual(shape, after[name][1], name)
            self.assertNotEqual(data, after[name][2], name)
        self.assertEqual(
            json.loads((self.output / "config.json").read_text())["model_type"], "llama"
        )
        (run,) = self.nvme.iterdir()
        self.assertIn(str(run), result.stdout)
        self.assertIn("peak memory", result.stdout)
        self.assertRegex(
            result.stdout,
            r"nvme writes +\S+ \S+ per step, \S+ \S+ per day .*: \S+ drive writes per day of",
        )

    def test_a_run_that_is_not_kept_leaves_nothing(self):
        config = self.write_config(headrace={"activation_nvme": True, "keep_run": False})
        self.check_ok(*self.arguments(config=config, steps=2))
        self.assertEqual(list(self.nvme.iterdir()), [])

    def test_state_of_eight_times_the_host_budget(self):
        """Weights, optimizer state and gradients of the preset are 98 MiB in fp32."""
        result = self.check_ok(*self.arguments(steps=3, host_memory="12MiB", device_memory="12MiB"))
        line = next(l for l in result.stdout.splitlines() if "peak memory" in l)
        number, unit = line.split("peak memory")[1].split()[:2]
        self.assertEqual(unit, "MiB", line)
        self.assertLess(float(number), 12 + 12 + 200)

    def test_validation_loss_is_reported(self):
        arguments = self.arguments(steps=4)
        arguments += ["--eval-steps", "2", "--validation-fraction", "0.1"]
        self.check_ok(*arguments)
        losses = [m for m in self.metrics(self.output) if "validation_loss" in m]
        self.assertEqual([m["step"] for m in losses], [2, 4])
        self.assertLess(losses[1]["validation_loss"], 6)

    def test_fp16_overflow_skips_steps_and_lowers_the_scale(self):
        config = self.write_config(fp16={"enabled": True, "initial_scale_power": 30, "hysteresis": 1})
        self.check_ok(*self.arguments(config=config, steps=24))
        metrics = self.metrics(self.output)
        self.assertTrue(metrics[0]["skipped"])
        self.assertEqual(metrics[0]["loss_scale"], 2.0**30)
        self.assertEqual(metrics[1]["loss_scale"], 2.0**29)
        self.assertFalse(metrics[-1]["skipped"])
        self.assertLess(metrics[-1]["loss"], metrics[0]["loss"])

    def test_steps_per_print_and_wall_clock_breakdown(self):
        config = self.write_config(steps_per_print=2, wall_clock_breakdown=True)
        result = self.check_ok(*self.arguments(config=config, steps=5))
        lines = result.stdout.splitlines()
        steps = [i for i, line in enumerate(lines) if line.startswith("step ")]
        self.assertEqual([int(lines[i].split()[1]) for i in steps], [1, 2, 4, 5])
        for i in steps:
            self.assertIn("time (ms)", lines[i + 1])
            self.assertIn("waiting for: nvme read", lines[i + 2])

    def test_ctrl_c_finishes_the_step_and_saves(self):
        process = subprocess.Popen(
            [COMMAND, *map(str, self.arguments(steps=100000))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        metrics = self.output / "metrics.jsonl"
        self.assertTrue(wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0))
        interrupt(process)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, out + error)
        self.assertIn("the same command goes on", out + error)
        self.assertTrue((self.output / "model.safetensors").exists())
        done = len(self.metrics(self.output))
        self.check_ok(*self.arguments(steps=done + 2))
        self.assertEqual([m["step"] for m in self.metrics(self.output)], list(range(1, done + 3)))

    def test_budget_too_small_names_the_minimum_and_it_is_the_minimum(self):
        for flag in ("host_memory", "device_memory"):
            result = self.check_fails(
                DOES_NOT_FIT,
                ["does not fit", "at least", flag.split("_", maxsplit=1)[0]],
                *self.arguments(**{flag: "1MiB"}),
            )
            self.assert_nothing_left()
            minimum = int(result.stderr.split("needs at least")[1].split("(")[1].split()[0])
            self.check_fails(DOES_NOT_FIT, ["does not fit"], *self.arguments(**{flag: minimum - 4096}))
            self.check_ok(*self.arguments(steps=1, **{flag: minimum}))
            for folder in (self.output, *self.nvme.iterdir()):
                shutil.rmtree(folder)

    def test_wrong_paths(self):
        missing = self.folder / "missing"
        self.check_fails(BAD_INPUT, [str(missing)], *self.arguments(model=missing))
        self.check_fails(BAD_INPUT, [str(missing)], *self.arguments(data=missing))
        self.check_fails(BAD_INPUT, [str(missing)], *self.arguments(config=missing))
        blocker = self.folder / "file"
        blocker.write_text("")
        self.check_fails(IO_FAILURE, [str(blocker)], *self.arguments(output=blocker / "out"))
        self.assert_nothing_left()

    def test_the_model_that_training_starts_from_is_not_replaced(self):
        before = (self.model / "model.safetensors").read_bytes()
        for output in (self.model, self.model / ".." / self.model.name / ""):
            self.check_fails(
                BAD_INPUT, ["is the folder of the model", "--output"],
                *self.arguments(output=output),
            )
        self.assertEqual((self.model / "model.safetensors").read_bytes(), before)
        self.assert_nothing_left()

    def test_folders_made_for_a_refused_run_are_removed(self):
        """And no others: an empty one that was there before stays."""
        kept = self.folder / "kept"
        kept.mkdir()
        before = sorted(self.folder.rglob("*"))
        for output in (kept, kept / "deep" / "output"):
            for nvme in (self.folder / "new" / "nvme", "/proc"):
                arguments = self.arguments(output=output, nvme_path=nvme, device_memory="1MiB")
                self.check_fails(DOES_NOT_FIT, ["does not fit"], *arguments)
                self.assertEqual(sorted(self.folder.rglob("*")), before)
        monitors = {
            "tensorboard": {"enabled": True, "output_path": str(self.folder / "new" / "board")},
            "csv_monitor": {"enabled": True, "output_path": "/proc/nowhere"},
        }
        config = self.write_config(**monitors)
        (kept / "metrics.jsonl").write_text("of the run before\n")
        before = sorted(self.folder.rglob("*"))
        self.check_fails(IO_FAILURE, ["csv_monitor"], *self.arguments(config=config, output=kept))
        self.check_fails(IO_FAILURE, ["csv_monitor"], *self.arguments(config=config))
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        self.assertEqual((kept / "metrics.jsonl").read_text(), "of the run before\n")
        blocked = [self.folder / "new" / "nvme", self.text / "nvme"]
        config = self.write_config(headrace={"nvme_path": [str(path) for path in blocked]})
        self.check_fails(BAD_INPUT, [str(blocked[1])], *self.arguments(config=config, nvme_path=None))
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_unwritable_nvme_path(self):
        self.check_fails(DOES_NOT_FIT, ["/proc", "nvme"], *self.arguments(nvme_path="/proc"))
        blocker = self.folder / "file"
        blocker.write_text("")
        self.check_fails(BAD_INPUT, [str(blocker)], *self.arguments(nvme_path=blocker / "deep"))

    def test_full_nvme_path(self):
        small = self.small_disk(8)
        result = self.run_command(*self.arguments(nvme_path=small))
        self.assertIn(result.returncode, (DOES_NOT_FIT, IO_FAILURE), result.stderr)
        self.assertIn(str(small), result.stderr)
        self.assertEqual(list(small.iterdir()), [])

    def test_no_room_for_the_model_is_told_before_the_first_step_and_loses_nothing(self):
        small = self.small_disk(1)
        result = self.run_command(*self.arguments(output=small))
        self.assertEqual(result.returncode, IO_FAILURE, result.stderr)
        warning = result.stderr.index("the trained model will take")
        self.assertLess(warning, result.stderr.index("No space left"), result.stderr)
        self.assertNotIn("model.safetensors", [path.name for path in small.iterdir()])
        self.check_ok("export", "--run", small, "--output", self.output)
        self.assertTrue((self.output / "model.safetensors").exists())

    def test_disk_budget_is_kept(self):
        config = self.write_config(headrace={"activation_nvme": True, "nvme_budget": "20MiB"})
        self.check_fails(
            DOES_NOT_FIT, ["at least", "--nvme-budget"], *self.arguments(config=config)
        )
        self.assert_nothing_left()

    def test_configuration_errors(self):
        for changes, texts in [
            ({"gradient_clippng": 1.0}, ["gradient_clippng", "gradient_clipping"]),
            ({"aio": {"block_size": -1}}, ["aio.block_size"]),
            ({"gradient_clipping": "much"}, ["gradient_clipping"]),
            ({"train_batch_size": 7}, ["train_batch_size"]),
            ({"zero_optimization": {"stage": 4}}, ["zero_optimization.stage"]),
        ]:
            with self.subTest(changes):
                config = self.write_config("bad.json", **changes)
                self.check_fails(BAD_INPUT, texts, *self.arguments(config=config))
        (self.folder / "nan.json").write_text('{"gradient_clipping": NaN}')
        self.check_fails(BAD_INPUT, ["nan.json"], *self.arguments(config=self.folder / "nan.json"))
        self.assert_nothing_left()

    def test_changes_are_allowed_to_settings_that_exist(self):
        texts = ["--allow-change lr: there is no such setting", "optimizer.lr"]
        self.check_fails(BAD_INPUT, texts, *self.arguments(), "--allow-change", "lr")
        self.assert_nothing_left()

    def test_usage_errors(self):
        self.check_fails(USAGE, [], "train")
        self.check_fails(USAGE, [], "nonsense")
        self.check_fails(USAGE, ["--steps"], *self.arguments(steps="many"))
        self.check_fails(USAGE, ["--seed"], *self.arguments(seed=-1))
        self.check_fails(USAGE, ["tiny"], "init-model", "--preset", "huge", "--output", self.folder / "x")
        self.check_fails(BAD_INPUT, ["--host-memory"], *self.arguments(host_memory="lots"))

    def test_paths_need_not_be_utf8(self):
        name = os.fsdecode(b"caf\xe9")
        model = shutil.copytree(self.model, self.folder / f"model {name}")
        output, nvme = (self.folder / f"{kind} {name}" for kind in ("output", "nvme"))
        arguments = {"model": model, "output": output, "nvme_path": nvme}
        for steps in (1, 2):
            done = subprocess.run(
                [COMMAND, *map(str, self.arguments(**arguments, steps=steps))],
                capture_output=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"resumed after 1", done.stdout)

    def test_a_sub_group_smaller_than_the_smallest_shard_makes_the_smallest(self):
        zero = {"stage": 3, "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}}
        config = self.write_config(zero_optimization={**zero, "sub_group_size": 1})
        self.check_ok(*self.arguments(config=config, steps=1))

    def test_bad_data(self):
        empty = self.folder / "empty.txt"
        empty.write_bytes(b"")
        self.check_fails(BAD_INPUT, ["empty.txt"], *self.arguments(data=empty))
        short = self.folder / "short.txt"
        short.write_bytes(b"hello")
        self.check_fails(BAD_INPUT, ["short.txt"], *self.arguments(data=short))
        tokens = self.folder / "tokens.bin"
        tokens.write_bytes(struct.pack("<1000H", *([5] * 700 + [60000] + [5] * 299)))
        self.check_fails(BAD_INPUT, ["tokens.bin", "60000", "258"], *self.arguments(data=tokens))
        self.assert_nothing_left()

    def test_sequence_longer_than_the_model_allows(self):
        self.check_fails(BAD_INPUT, ["max_position_embeddings"], *self.arguments(seq_len=100000000))


class DocumentedPlanTest(TrainSetup):
    """The memory plan that the documentation shows is that of scripts/quickstart.sh."""

    @staticmethod
    def rows(text):
        rows = []
        for line in text.split("Memory plan\n")[1].splitlines():
            if not line.startswith("  "):
                return rows
            rows.append(re.split(r"\s{2,}", line.strip())[0])
        return rows

    def test_has_the_rows_that_are_printed(self):
        out = self.check_ok(*self.arguments(
            config=REPOSITORY / "configs/zero3_nvme.json", host_memory="24MiB", steps=1, seq_len=256)).stdout
        printed = self.rows(out)
        self.assertIn("host budget", printed)
        for page in ("README.md", "docs/guide.md"):
            self.assertEqual(self.rows((REPOSITORY / page).read_text()), printed, page)


class CheckpointTest(TrainSetup):
    """Model folders that lie."""

    def damage(self, change):
        path = self.model / "model.safetensors"
        data = bytearray(path.read_bytes())
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(bytes(data[8 : 8 + length]))
        body = bytes(data[8 + length :])
        header, body = change(header, body)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)

    def check_refused(self, *texts):
        self.check_fails(BAD_INPUT, ["model.safetensors", *texts], *self.arguments())
        self.assert_nothing_left()

    def test_truncated(self):
        self.damage(lambda header, body: (header, body[:-100]))
        self.check_refused()

    def test_wrong_shape(self):
        def change(header, body):
            header["model.norm.weight"]["shape"] = [128, 2]
            return header, body

        self.damage(change)
        self.check_fails(BAD_INPUT, ["model.norm.weight"], *self.arguments())

    def test_offsets_outside(self):
        def change(header, body):
            begin, _ = header["model.norm.weight"]["data_offsets"]
            header["model.norm.weight"]["data_offsets"] = [begin, 1 << 60]
            return header, body

        self.damage(change)
        self.check_refused("model.norm.weight")

    def test_huge_header(self):
        path = self.model / "model.safetensors"
        path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
        self.check_refused()

    def test_missing_tensor(self):
        def change(header, body):
            del header["model.norm.weight"]
            return header, body

        self.damage(change)
        self.check_fails(BAD_INPUT, ["model.norm.weight"], *self.arguments())

    def test_missing_shard(self):
        path = self.model / "model.safetensors"
        path.rename(self.model / "model-00001-of-00002.safetensors")
        index = {
            "metadata": {},
            "weight_map": {
                "model.norm.weight": "model-00002-of-00002.safetensors",
                "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            },
        }
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))
        self.check_fails(BAD_INPUT, ["model-00002-of-00002.safetensors"], *self.arguments())

    def test_unknown_family(self):
        config = json.loads((self.model / "config.json").read_text())
        config["model_type"] = "mamba"
        (self.model / "config.json").write_text(json.dumps(config))
        self.check_fails(BAD_INPUT, ["mamba", "llama", "qwen3"], *self.arguments())


class PlacementTest(CommandTest):
    """Placement changes nothing: bitwise the same losses and weights (rule 2), through the command."""

    def test_every_placement_gives_the_same_bits(self):
        model = self.init_model()
        text = self.write_text()
        nvme = self.folder / "nvme"
        nvme.mkdir()

        def zero(param, optimizer, stage=3):
            block = {"stage": stage}
            if param:
                block["offload_param"] = {"device": param}
            if optimizer:
                block["offload_optimizer"] = {"device": optimizer}
            return block

        cases = {
            "all on the device": (zero(None, None, 0), {}, {}, ["--device-memory", "1GiB"]),
            "host only": (zero(None, None, 0), {}, {}, []),
            "cpu offload": (zero("cpu", "cpu"), {}, {"cpu_checkpointing": True}, ["--device-memory", "16MiB"]),
            "optimizer on cpu": (zero(None, "cpu", 2), {}, {}, ["--device-memory", "64MiB"]),
            "nvme": (
                zero("nvme", "nvme"),
                {"activation_nvme": True},
                {},
                ["--device-memory", "12MiB", "--host-memory", "20MiB"],
            ),
            "nvme, no device": (
                zero("nvme", "nvme"),
                {"activation_nvme": True},
                {},
                ["--host-memory", "30MiB"],
            ),
            "nvme, lru, thread pool": (
                zero("nvme", "nvme"),
                {"activation_nvme": True, "policy": "lru", "io_backend": "thread_pool"},
                {},
                ["--device-memory", "12MiB", "--host-memory", "20MiB"],
            ),
            "small sub-groups": (
                dict(zero("nvme", "nvme"), sub_group_size=70000),
                {"activation_nvme": True},
                {},
                ["--device-memory", "12MiB", "--host-memory", "20MiB"],
            ),
        }
        reference = None
        for name, (zero_block, headrace, checkpointing, flags) in cases.items():
            with self.subTest(name):
                changes = {"zero_optimization": zero_block, "headrace": headrace,
                           "gradient_accumulation_steps": 2, "bf16": {"enabled": True}}
                if checkpointing:
                    changes["activation_checkpointing"] = checkpointing
                config = self.write_config(**changes)
                output = self.folder / "output"
                self.check_ok("train", "--model", model, "--data", text, "--config", config,
                              "--output", output, "--nvme-path", nvme, "--steps", 3,
                              "--seq-len", 64, *flags)
                losses = [(m["loss"], m["gradient_norm"]) for m in self.metrics(output)]
                weights = (output / "model.safetensors").read_bytes()
                shutil.rmtree(output)
                if reference is None:
                    reference = (losses, weights)
                self.assertEqual(losses, reference[0])
                self.assertEqual(weights, reference[1])


if __name__ == "__main__":
    unittest.main()
