"""headrace.lossy_fp8_forward by the command: budgets, resuming, what is refused."""

import unittest

from command import BAD_INPUT, CommandTest


class Fp8Test(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = self.init_model()
        self.text = self.write_text()

    def arguments(self, output, *flags, fp8=True, dtype="bf16", steps=3, seq=64):
        own = {"activation_nvme": True, "lossy_fp8_forward": fp8}
        types = {dtype: {"enabled": True}} if dtype != "fp32" else {}
        config = self.write_config(f"{output}.json", headrace=own, **types)
        return ["train", "--model", self.model, "--data", self.text, "--config", config, "--output",
                self.folder / output, "--nvme-path", self.folder / "nvme", "--steps", steps, "--seq-len", seq,
                *flags]  # fmt: skip

    def result(self, output):
        losses = [line["loss"] for line in self.metrics(self.folder / output) if "loss" in line]
        return losses, (self.folder / output / "model.safetensors").read_bytes()

    def test_small_budgets_and_resuming_change_no_bit(self):
        said = self.check_ok(*self.arguments("whole", "--host-memory", "2GiB"))
        self.assertIn("headrace.lossy_fp8_forward: the CPU computes", said.stderr)
        tight = ["--host-memory", "24MiB", "--device-memory", "16MiB"]
        self.check_ok(*self.arguments("tight", *tight))
        self.assertEqual(self.result("tight"), self.result("whole"))
        self.check_ok(*self.arguments("parts", *tight, steps=1))
        self.check_ok(*self.arguments("parts", "--host-memory", "1GiB"))
        self.assertEqual(self.result("parts")[1], self.result("whole")[1])

    def test_losses_are_near_those_of_16_bits_and_not_the_same(self):
        for dtype in ("bf16", "fp16"):
            losses = []
            for fp8 in (True, False):
                self.check_ok(*self.arguments(f"{dtype}-{fp8}", fp8=fp8, dtype=dtype))
                losses.append(self.result(f"{dtype}-{fp8}")[0])
            self.assertNotEqual(*losses)
            for rounded, plain in zip(*losses):
                self.assertAlmostEqual(rounded, plain, delta=0.01 * plain)

    def test_what_would_change_the_numbers_is_refused(self):
        self.check_ok(*self.arguments("run", steps=1))
        changed = self.arguments("run", fp8=False)
        self.check_fails(BAD_INPUT, ["headrace.lossy_fp8_forward: true before, none now"], *changed)
        self.check_ok(*changed, "--allow-change", "headrace.lossy_fp8_forward")
        self.check_ok(*self.arguments("other", fp8=False, steps=1))
        self.check_fails(
            BAD_INPUT, ["headrace.lossy_fp8_forward: none before, true now"], *self.arguments("other")
        )

    def test_what_cannot_be_is_refused_before_the_run(self):
        self.check_fails(
            BAD_INPUT, ["headrace.lossy_fp8_forward: needs bf16 or fp16 training"], *self.arguments("run", dtype="fp32")
        )
        self.check_fails(
            BAD_INPUT,
            ["headrace.lossy_fp8_forward", "tokens of a micro-batch is 100"],
            *self.arguments("run", seq=50),
        )


if __name__ == "__main__":
    unittest.main()
