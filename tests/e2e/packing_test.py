"""Sequence packing by the command: documents of one token file that share sequences."""

import json
import random
import subprocess
import sys
import unittest

from cli_test import TrainSetup
from command import BAD_INPUT, REPOSITORY, read_safetensors

END = 257  # of the byte-level vocabulary
SEQ = 64


class PackingSetup(TrainSetup):
    def setUp(self):
        super().setUp()
        source = random.Random(5)
        text = self.text.read_text(errors="replace")
        self.data = self.tokens("tokens", [
            text[(at := source.randrange(len(text) - 200)):at + source.randrange(1, 90)]
            for _ in range(900)
        ])  # fmt: skip
        self.packing = self.config_with(packing=True)

    def tokens(self, name, documents, *options):
        lines = self.folder / f"{name}.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        path = self.folder / f"{name}.safetensors"
        subprocess.run(
            [sys.executable, REPOSITORY / "scripts" / "prepare_data.py", "--tokenizer", "bytes",
             "--output", path, *map(str, options), lines],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return path

    def config_with(self, name="packing.json", **headrace):
        return self.write_config(name, gradient_accumulation_steps=2,
                                 headrace={"activation_nvme": True, **headrace})  # fmt: skip

    def train(self, output, **changes):
        """Losses by step, norms, and the weights."""
        values = {"data": self.data, "config": self.packing, "seq_len": SEQ, **changes}
        folder = self.folder / output
        self.check_ok(*self.arguments(output=folder, **values))
        steps = [m for m in self.metrics(folder) if "loss" in m]
        return (
            [(m["step"], m["loss"], m["gradient_norm"]) for m in steps],
            read_safetensors(folder / "model.safetensors"),
        )


class PackingTest(PackingSetup):
    def test_small_budgets_give_the_bits_of_large_ones(self):
        large = self.train("large", host_memory="512MiB", device_memory=None)
        self.assertEqual(self.train("small", host_memory="12MiB", device_memory="12MiB"), large)
        plain = self.train("plain", config=self.config_with("plain.json"))
        self.assertNotEqual(plain[0], large[0], "documents that see each other")

    def test_sequences_that_are_one_document_need_no_packing(self):
        """Each row ends with its document: nothing is to be separated."""
        rows = self.tokens("rows", ["x" * (SEQ - 1 - n % 2) + "y" * (n % 2) for n in range(40)],
                           "--seq-len", SEQ)  # fmt: skip
        self.assertEqual(
            self.train("packed", data=rows),
            self.train("plain", data=rows, config=self.config_with("plain.json")),
        )

    def test_a_run_goes_on_with_the_same_packing_alone(self):
        whole = self.train("whole", steps=5)
        self.train("parts", steps=2)
        config = self.config_with("other.json")
        arguments = self.arguments(data=self.data, config=config, output=self.folder / "parts",
                                   steps=5, seq_len=SEQ)  # fmt: skip
        self.check_fails(BAD_INPUT, ["headrace.packing", "documents end with token 257 before",
                                     "none now", "--allow-change"], *arguments)  # fmt: skip
        other_end = self.config_with("end.json", packing=True, document_end=32)
        self.check_fails(BAD_INPUT, ["headrace.packing", "token 32 now"],
                         *self.arguments(data=self.data, config=other_end, steps=5, seq_len=SEQ,
                                         output=self.folder / "parts"))  # fmt: skip
        self.assertEqual(self.train("parts", steps=5, host_memory="24MiB"), whole)
        arguments[arguments.index("--steps") + 1] = 6
        self.check_ok(*arguments, "--allow-change", "headrace.packing")

    def test_validation_separates_documents_too(self):
        options = ["--eval-steps", "2", "--validation-fraction", "0.2"]
        losses = {}
        for name, config in (("packed", self.packing), ("plain", self.config_with("plain.json"))):
            # Nothing is learnt: the weights are those of the model.
            arguments = self.arguments(data=self.data, config=config, output=self.folder / name,
                                       steps=2, seq_len=SEQ, lr=0)  # fmt: skip
            self.check_ok(*arguments, *options)
            (losses[name],) = {m["validation_loss"] for m in self.metrics(self.folder / name)
                               if "validation_loss" in m}  # fmt: skip
        self.assertNotEqual(losses["packed"], losses["plain"])
        self.assertAlmostEqual(losses["packed"], losses["plain"], delta=0.2)

    def test_the_token_that_ends_documents_must_be_known(self):
        def fails(texts, **headrace):
            self.check_fails(BAD_INPUT, texts, *self.arguments(
                data=self.data, config=self.config_with("bad.json", **headrace)))  # fmt: skip

        fails(["headrace.document_end: 259 is not in the model's vocabulary"],
              packing=True, document_end=259)  # fmt: skip
        path = self.model / "config.json"
        model = json.loads(path.read_text())
        model["eos_token_id"] = [256, END]
        path.write_text(json.dumps(model))
        fails(["headrace.document_end", "more than one eos_token_id (256, 257)"], packing=True)
        del model["eos_token_id"]
        path.write_text(json.dumps(model))
        fails(["headrace.document_end", "has no eos_token_id"], packing=True)
        result = self.check_ok(*self.arguments(
            data=self.data, config=self.config_with("end.json", packing=True, document_end=200),
            steps=1))  # fmt: skip
        self.assertIn("token 200, which ends a document, is not among", result.stderr)


if __name__ == "__main__":
    unittest.main()
