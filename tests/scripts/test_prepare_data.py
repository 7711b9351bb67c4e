"""Tests of scripts/prepare_data.py."""

import json
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
from script_helpers import has_packages, load_script, read_tokens, run_main  # noqa: E402

prepare_data = load_script("prepare_data")
EOS, PAD = 257, 258  # of the byte-level vocabulary


class PrepareDataCase(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def write_lines(self, *entries):
        return self.write("in.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))

    def prepare(self, *arguments, output="out.safetensors", tokenizer="bytes"):
        return run_main(prepare_data, *arguments, "--tokenizer", tokenizer,
                        "--output", self.folder / output)

    def tokens(self, *arguments, **options):
        code, _, err = self.prepare(*arguments, **options)
        self.assertEqual(code, 0, err)
        return read_tokens(self.folder / "out.safetensors")

    def expect_failure(self, *arguments, parts=(), **options):
        before = sorted(self.folder.iterdir())
        code, _, err = self.prepare(*arguments, **options)
        self.assertEqual(code, 1, err)
        for part in parts:
            self.assertIn(part, err)
        self.assertEqual(sorted(self.folder.iterdir()), before, "files are left behind")


class Bytes(PrepareDataCase):
    def test_texts_become_one_stream(self):
        first, second = self.write("a.txt", "Grüße\n\n"), self.write("b.txt", "xy")
        values, shape = self.tokens(first, second)
        expected = list("Grüße\n\n".encode()) + [EOS] + [120, 121, EOS]
        self.assertEqual(values, {"input_ids": expected})
        self.assertEqual(shape, [len(expected)])
        values, _ = self.tokens(second, "--no-eos")
        self.assertEqual(values["input_ids"], [120, 121])

    def test_bin_is_raw_uint16(self):
        self.assertEqual(self.prepare(self.write("a.txt", "abc"), output="out.bin")[0], 0)
        data = (self.folder / "out.bin").read_bytes()
        self.assertEqual(struct.unpack("<4H", data), (97, 98, 99, EOS))

    def test_only_the_completion_has_labels(self):
        values, _ = self.tokens(self.write_lines({"prompt": "ä", "completion": "ok"},
                                                 {"text": "x"}))
        self.assertEqual(values["input_ids"], [0xC3, 0xA4, 111, 107, EOS, 120, EOS])
        self.assertEqual(values["labels"], [-100, -100, 111, 107, EOS, 120, EOS])

    def test_rows_keep_documents_whole_and_pad(self):
        lines = self.write_lines({"text": "abc"}, {"text": "de"}, {"text": "f"},
                                 {"text": "0123456789"})
        values, shape = self.tokens(lines, "--seq-len", 8)
        rows = ["abc", "de", "f", "01234567", "89"]
        a, d, f, long_head, long_tail = [list(row.encode()) for row in rows]
        expected = [a + [EOS] + d + [EOS], f + [EOS], long_head, long_tail + [EOS]]
        flat, labels = [], []
        for row in expected:
            flat += row + [PAD] * (8 - len(row))
            labels += row + [-100] * (8 - len(row))
        self.assertEqual(shape, [len(expected), 8])
        self.assertEqual(values["input_ids"], flat)
        self.assertEqual(values["labels"], labels)

    def test_masks_do_not_fit_into_bin(self):
        lines = self.write_lines({"prompt": "a", "completion": "b"})
        self.expect_failure(lines, output="out.bin", parts=["write .safetensors"])

    def test_malformed_lines_are_named(self):
        good = json.dumps({"text": "x"}) + "\n\n"
        for bad, part in [("{oops", "not valid JSON"), ("[1]", "expected an object"),
                          ('{"txt": "x"}', "'txt'"), ('{"text": 5}', '"text" must be a string'),
                          ('{"prompt": "x"}', '"completion"'), ('{"messages": []}', "not empty"),
                          ('{"messages": [{"role": "user"}]}', "message 0"),
                          ('{"messages": [{"role": "user", "content": "x"}]}', "chat template")]:
            path = self.write("in.jsonl", good + bad + "\n")
            self.expect_failure(path, parts=[f"{path}:3: ", part])
        path = self.write("in.jsonl", good.encode() + b'{"text": "\xff"}\n')
        self.expect_failure(path, parts=[f"{path}:3: ", "UTF-8"])

    def test_other_errors(self):
        text = self.write("a.txt", "abc")
        self.expect_failure(self.folder / "none.txt", parts=["none.txt"])
        self.expect_failure(self.write("b.txt", b"\xff\xfe"), parts=["b.txt", "UTF-8"])
        self.expect_failure(self.write("empty.jsonl", ""), parts=["no tokens"])
        self.expect_failure(self.write("c.parquet", "x"), parts=[".parquet"])
        same = self.write("out.bin", "x")
        self.expect_failure(same, "--format", "text", output="out.bin", parts=["input and output"])
        self.assertEqual(self.prepare(text, output="out.txt")[0], 2)
        self.assertEqual(self.prepare(text, "--seq-len", 8, output="out.bin")[0], 2)

    def test_an_existing_output_survives_a_failure(self):
        self.tokens(self.write("a.txt", "abc"))
        before = (self.folder / "out.safetensors").read_bytes()
        self.expect_failure(self.write("in.jsonl", '{"text": "x"}\n{bad\n'), parts=[":2: "])
        self.assertEqual((self.folder / "out.safetensors").read_bytes(), before)

    def test_long_text_in_pieces_is_the_same_stream(self):
        text = "Ein Wort.\n\nZwei  Worte,\tdrei\r\n" * 50 + "x" * 300 + " ende"
        with mock.patch.object(prepare_data, "CHUNK_CHARACTERS", 64):
            path = self.write("a.txt", text)
            pieces = [piece for piece, _ in prepare_data.pieces_of_text(path)]
            self.assertGreater(len(pieces), 10)
            self.assertEqual("".join(piece.texts[0][0] for piece in pieces), text)
            values, _ = self.tokens(path)
        self.assertEqual(values["input_ids"], list(text.encode()) + [EOS])


TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
            "'<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def write_tokenizer(folder, template=TEMPLATE):
    """A byte-level BPE trained on a few words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, show_progress=False, special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the river runs to the turbine\n\nwater and stone "] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>", "chat_template": template}))
    return tokenizer


@unittest.skipUnless(has_packages("tokenizers"), "the package tokenizers is not installed")
class WithTokenizer(PrepareDataCase):
    def test_pieces_give_the_tokens_of_the_whole(self):
        tokenizer = write_tokenizer(self.folder)
        text = "the river  runs\n\n to the turbine.\nwater and\tstone\n\n\n" * 80
        with mock.patch.object(prepare_data, "CHUNK_CHARACTERS", 100):
            values, _ = self.tokens(self.write("a.txt", text), tokenizer=self.folder)
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        self.assertEqual(values["input_ids"], expected + [tokenizer.token_to_id("<|im_end|>")])

    def test_tokenizer_that_begins_texts(self):
        from tokenizers import processors
        tokenizer = write_tokenizer(self.folder)
        bos = tokenizer.token_to_id("<|im_start|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)])
        tokenizer.save(str(self.folder / "tokenizer.json"))
        values, _ = self.tokens(self.write_lines({"text": "the river"}), tokenizer=self.folder)
        self.assertEqual(values["input_ids"], tokenizer.encode("the river").ids
                         + [tokenizer.token_to_id("<|im_end|>")])
        self.assertEqual(values["labels"][0], -100)

    def test_tokenizer_errors(self):
        text = self.write("a.txt", "abc")
        self.expect_failure(text, tokenizer=self.folder / "none", parts=["tokenizer.json"])
        self.expect_failure(text, tokenizer=self.write("tokenizer.json", "{}"),
                            parts=["tokenizer.json", "not a tokenizer"])


@unittest.skipUnless(has_packages("tokenizers", "transformers", "jinja2"),
                     "the packages tokenizers, transformers, jinja2 are not all installed")
class Chat(PrepareDataCase):
    MESSAGES = [{"role": "system", "content": "the stone"},
                {"role": "user", "content": "the river?"},
                {"role": "assistant", "content": "runs to the turbine"},
                {"role": "user", "content": "water"},
                {"role": "assistant", "content": "and stone"}]

    def test_only_the_assistant_has_labels(self):
        tokenizer = write_tokenizer(self.folder)
        values, _ = self.tokens(self.write_lines({"messages": self.MESSAGES}),
                                tokenizer=self.folder)
        ids, labels = values["input_ids"], values["labels"]
        whole = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n"
                        for m in self.MESSAGES)
        self.assertEqual(tokenizer.decode(ids, skip_special_tokens=False), whole)
        trained = [label for label in labels if label != -100]
        self.assertTrue(all(label in (-100, i) for i, label in zip(ids, labels)))
        self.assertEqual(tokenizer.decode(trained, skip_special_tokens=False),
                         "runs to the turbine<|im_end|>and stone<|im_end|>")

    def test_conversations_that_cannot_be_used(self):
        write_tokenizer(self.folder)
        lines = self.write_lines({"messages": self.MESSAGES[:2]})
        self.expect_failure(lines, tokenizer=self.folder, parts=[f"{lines}:1: ", "assistant"])
        write_tokenizer(self.folder, "{{ messages | length }}{{ messages[-1]['content'] }}")
        lines = self.write_lines({"messages": self.MESSAGES})
        self.expect_failure(lines, tokenizer=self.folder, parts=[f"{lines}:1: ", "earlier turns"])
        write_tokenizer(self.folder, "{{ raise_exception('roles must alternate') }}")
        self.expect_failure(lines, tokenizer=self.folder, parts=["roles must alternate"])


if __name__ == "__main__":
    unittest.main()
