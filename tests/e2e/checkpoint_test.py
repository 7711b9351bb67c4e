"""headrace checkpoint, verify and export, driven from outside."""

import array
import json
import signal
import struct
import subprocess
import time
import unittest

from command import (
    BAD_INPUT, COMMAND, DOES_NOT_FIT, INTERRUPTED, IO_FAILURE, CommandTest, read_safetensors,
)  # fmt: skip

MIB = 1 << 20


class RunSetup(CommandTest):
    """A bf16 run of 6 steps on nvme with a snapshot every 2 steps."""

    SAVE_INTERVAL = 2

    def setUp(self):
        super().setUp()
        self.model = self.init_model()
        (self.model / "tokenizer.json").write_text("{}")
        self.text = self.write_text()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()
        self.output = self.folder / "output"
        self.train(6)

    def config(self, **headrace):
        keys = {"save_interval": self.SAVE_INTERVAL, "keep_last": 2, **headrace}
        return self.write_config(bf16={"enabled": True}, headrace=keys)

    def train_arguments(self, steps, output=None, **headrace):
        return ["train", "--model", self.model, "--data", self.text, "--config",
                self.config(**headrace), "--output", output or self.output, "--nvme-path", self.nvme,
                "--host-memory", "32MiB", "--steps", steps, "--seq-len", 64]  # fmt: skip

    def train(self, steps, output=None, **headrace):
        return self.check_ok(*self.train_arguments(steps, output, **headrace))

    def generations(self):
        lines = self.check_ok("checkpoint", "list", "--run", self.output).stdout.splitlines()[1:]
        return {int(line.split()[0]): line for line in lines}

    def run_directory(self):
        (directory,) = self.nvme.iterdir()
        return directory

    def blocks(self):
        return sum(path.stat().st_blocks * 512 for path in self.run_directory().glob("data-*"))


class SnapshotTest(RunSetup):
    def test_create_list_delete_restore(self):
        listed = self.generations()
        self.assertEqual(sorted(listed), [4, 6])
        self.assertIn("snapshot (automatic)", listed[4])
        self.assertIn("current, snapshot", listed[6])
        with_snapshot = self.blocks()
        self.check_ok("checkpoint", "delete", "--run", self.output, "--generation", 4)
        self.assertEqual(sorted(self.generations()), [6])
        self.assertLess(self.blocks(), with_snapshot - 60 * MIB, "the space is given back")

        self.train(7)
        self.check_ok("checkpoint", "create", "--run", self.run_directory())
        losses = {m["step"]: m["loss"] for m in self.metrics(self.output)}
        self.check_fails(BAD_INPUT, ["generation 5", "6, 7"], "checkpoint", "delete", "--run",
                         self.output, "--generation", 5)  # fmt: skip
        self.check_ok("checkpoint", "restore", "--run", self.output, "--generation", 6)
        self.assertIn("current", self.generations()[6])
        self.train(9)
        again = {m["step"]: m["loss"] for m in self.metrics(self.output)}
        self.assertEqual(sorted(again), list(range(1, 10)))
        self.assertEqual(again[7], losses[7])
        self.check_ok("verify", "--run", self.output)

    def test_restore_keeps_the_current_generation_unless_told_not_to(self):
        self.train(7)
        result = self.check_ok("checkpoint", "restore", "--run", self.output, "--generation", 4)
        self.assertIn("generation 7 stays", result.stdout)
        self.assertEqual(sorted(self.generations()), [4, 6, 7])
        self.check_ok("checkpoint", "restore", "--run", self.output, "--generation", 7)
        self.train(8)
        self.check_ok("checkpoint", "restore", "--run", self.output, "--generation", 6,
                      "--discard-current")  # fmt: skip
        self.assertIn("current", self.generations()[6])

    def test_a_snapshot_for_which_there_is_no_room_is_left_out_with_a_warning(self):
        output = self.folder / "tight"
        result = self.train(6, output=output, nvme_budget="210MiB")
        self.assertIn("no snapshot was taken", result.stderr)
        self.assertIn("nvme_budget", result.stderr)
        self.check_ok("verify", "--run", output)
        self.check_fails(DOES_NOT_FIT, ["at least"],
                         *self.train_arguments(4, self.folder / "x", nvme_budget="100MiB"))  # fmt: skip

    def test_a_warning_comes_before_the_room_for_snapshots_ends(self):
        result = self.train(6, output=self.folder / "one", nvme_budget="256MiB")
        self.assertLess(result.stderr.index("leaves no room for a further one"),
                        result.stderr.index("no snapshot was taken"))  # fmt: skip
        self.assertEqual(result.stderr.count("leaves no room for a further one"), 1)

    def test_a_run_in_use_is_left_alone(self):
        lock = open(self.run_directory() / "LOCK", "r+")  # noqa: SIM115
        self.addCleanup(lock.close)
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["verify"], ["checkpoint", "create"], ["export", "--output", self.folder / "e"]):
            self.check_fails(BAD_INPUT, ["in use"], *command, "--run", self.output)
        self.assertEqual(sorted(self.generations()), [4, 6], "listing is possible")

    def test_no_run(self):
        for command in (["verify"], ["checkpoint", "list"], ["export", "--output", self.folder / "e"]):
            self.check_fails(BAD_INPUT, ["neither a run directory"], *command, "--run", self.nvme)


class DamageSetup(RunSetup):
    def flip(self, offset):
        path = self.run_directory() / "data-0"
        with open(path, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 4]))

    def flip_weights(self):
        """A bit of the current weights in the store."""
        weights = read_safetensors(self.output / "model.safetensors")["lm_head.weight"][2]
        data = (self.run_directory() / "data-0").read_bytes()
        place = data.find(weights[:4096])
        self.assertGreaterEqual(place, 0)
        while place >= 0:  # an older copy may lie in free space
            self.flip(place + 100)
            place = data.find(weights[:4096], place + 1)


class VerifyTest(DamageSetup):
    SAVE_INTERVAL = 0

    def used_offset(self):
        """Some place in the middle of the data that the run uses: blocks that are not holes."""
        data = (self.run_directory() / "data-0").read_bytes()
        places = [at for at in range(0, len(data), 4096) if any(data[at : at + 4096])]
        return places[len(places) // 2] + 100

    def test_names_what_is_damaged(self):
        result = self.check_ok("verify", "--run", self.output)
        self.assertIn("every checksum matches", result.stdout)
        self.flip(self.used_offset())
        result = self.check_fails(IO_FAILURE, ["1 of its extents"], "verify", "--run", self.output)
        self.assertIn("data-0", result.stdout)
        self.assertRegex(result.stdout, r"at offset \d+|offset \d+")
        self.assertRegex(result.stdout, r"(weights|moment|master).* of (model|lm_head)\..* elements")
        self.assertIn("generation 6", result.stdout)

    def test_training_over_damage_ends_with_the_place(self):
        self.flip(self.used_offset())
        result = self.check_fails(IO_FAILURE, ["damaged", "data-0", "offset", "2 times"],
                                  *self.train_arguments(8))  # fmt: skip
        self.assertIn("reading it again", result.stderr)
        self.assertIn("6", self.check_ok("checkpoint", "list", "--run", self.output).stdout)


class RepairFromMasterTest(DamageSetup):
    """16-bit weights beside a whole fp32 master, from which they can be made anew."""

    SAVE_INTERVAL = 0

    def config(self, **headrace):
        return super().config(split_master=False, **headrace)

    def test_weights_are_made_anew(self):
        self.check_ok("export", "--run", self.output, "--output", self.folder / "before")
        self.flip_weights()
        result = self.check_fails(IO_FAILURE, ["1 of its extents"], "verify", "--run", self.output)
        self.assertIn(f"headrace verify --run {self.output} --repair", result.stdout)
        result = self.check_ok("verify", "--run", self.output, "--repair")
        self.assertIn("repaired, with bytes that are made anew from other values", result.stdout)
        self.assertIn("every checksum matches now", result.stdout)
        self.check_ok("verify", "--run", self.output)
        self.check_ok("export", "--run", self.output, "--output", self.folder / "after")
        self.assertEqual(
            (self.folder / "before" / "model.safetensors").read_bytes(),
            (self.folder / "after" / "model.safetensors").read_bytes(),
        )
        self.train(7)


class GoBackTest(DamageSetup):
    """What cannot be repaired: the way back is named, and works as it is printed."""

    def follow(self, result, action):
        """Runs the command of this kind that was printed, and returns it."""
        (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"headrace {action} ")]
        self.check_ok(*line.split()[1:])
        return line

    def test_to_the_newest_whole_snapshot(self):
        self.flip_weights()
        result = self.check_fails(IO_FAILURE, ["1 of its extents"], "verify", "--run", self.output, "--repair")
        self.assertIn("not repaired", result.stdout)
        self.assertIn("generation 6", result.stdout)
        self.assertIn("--generation 4 ", self.follow(result, "checkpoint restore"))
        result = self.check_fails(IO_FAILURE, ["1 of its extents"], "verify", "--run", self.output)
        self.assertIn("the current generation is whole", result.stdout)
        self.follow(result, "checkpoint delete")
        self.check_ok("verify", "--run", self.output)
        self.assertEqual(sorted(self.generations()), [4])
        self.train(7)


class ExportTest(RunSetup):
    def export(self, *flags):
        folder = self.folder / ("export" + "".join(map(str, flags)).replace("-", "_"))
        self.check_ok("export", "--run", self.output, "--output", folder, *flags)
        return folder

    @staticmethod
    def floats(data):
        return array.array("f", data)

    def test_the_current_generation_is_what_training_wrote(self):
        folder = self.export()
        self.assertEqual(
            (folder / "model.safetensors").read_bytes(),
            (self.output / "model.safetensors").read_bytes(),
        )
        self.assertTrue((folder / "tokenizer.json").exists())
        self.assertEqual(json.loads((folder / "config.json").read_text())["torch_dtype"], "bfloat16")

    def test_the_model_that_was_trained_is_not_replaced(self):
        before = (self.model / "model.safetensors").read_bytes()
        self.check_fails(
            BAD_INPUT, ["is the folder of the model"],
            "export", "--run", self.output, "--output", self.model,
        )
        self.assertEqual((self.model / "model.safetensors").read_bytes(), before)

    def test_a_full_disk_leaves_no_part_of_a_universal_checkpoint(self):
        small = self.small_disk(1)
        for output in (small, small / "deeper" / "folder"):
            self.check_fails(
                IO_FAILURE, ["No space left"],
                "export", "--run", self.output, "--output", output, "--format", "deepspeed-universal",
            )
            self.assertEqual(list(small.iterdir()), [])

    def interrupt_export(self, output, kind):
        """Ctrl-C once the export has begun to write; its exit code."""
        process = subprocess.Popen(
            [COMMAND, "export", "--run", self.output, "--output", output, "--format", kind],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not output.exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        return process.wait(timeout=60)

    def test_ctrl_c_leaves_no_part(self):
        for kind in ("huggingface", "deepspeed-universal"):
            for attempt in range(50):  # some are done before the signal comes
                output = self.folder / f"{kind}-{attempt}"
                code = self.interrupt_export(output, kind)
                if code != 0:
                    break
            self.assertEqual(code, INTERRUPTED, kind)
            self.assertFalse(output.exists(), kind)

    def test_fp32_has_the_master_weights(self):
        weights = read_safetensors(self.export() / "model.safetensors")
        masters = read_safetensors(self.export("--dtype", "fp32") / "model.safetensors")
        finer = 0
        for name, (dtype, shape, data) in masters.items():
            self.assertEqual((dtype, shape), ("F32", weights[name][1]))
            words = struct.unpack(f"<{len(data) // 4}I", data)
            halves = struct.unpack(f"<{len(data) // 4}H", weights[name][2])
            # To nearest, ties away from zero: how the optimizers round.
            self.assertEqual([(word + 0x8000) >> 16 for word in words], list(halves), name)
            finer += sum(1 for word in words if word & 0xFFFF)
        self.assertGreater(finer, 1_000_000)

    def test_other_dtypes_and_shards(self):
        masters = read_safetensors(self.export("--dtype", "fp32") / "model.safetensors")
        folder = self.export("--dtype", "fp16", "--max-shard-size", "4MB")
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(masters))
        name = "model.layers.3.mlp.up_proj.weight"
        dtype, _, data = read_safetensors(folder / index["weight_map"][name])[name]
        self.assertEqual(dtype, "F16")
        halves = struct.unpack(f"<{len(data) // 2}e", data)
        self.assertEqual(
            list(halves), [struct.unpack("<e", struct.pack("<e", v))[0] for v in self.floats(masters[name][2])]
        )

    def test_a_snapshot_is_what_training_to_there_wrote(self):
        shorter = self.folder / "shorter"
        self.train(4, output=shorter)
        self.assertEqual(
            (self.export("--generation", 4) / "model.safetensors").read_bytes(),
            (shorter / "model.safetensors").read_bytes(),
        )
        result = self.check_fails(BAD_INPUT, ["generation 3"], "export", "--run", self.output,
                                  "--output", self.folder / "no", "--generation", 3)  # fmt: skip
        self.assertFalse((self.folder / "no").exists(), result.stderr)

    def test_without_the_model_folder(self):
        for path in self.model.iterdir():
            path.unlink()
        folder = self.export()
        self.assertEqual(
            (folder / "model.safetensors").read_bytes(),
            (self.output / "model.safetensors").read_bytes(),
        )
        self.assertEqual(json.loads((folder / "config.json").read_text())["model_type"], "llama")


if __name__ == "__main__":
    unittest.main()
