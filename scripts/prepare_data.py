#!/usr/bin/env python3
"""Turns text and JSON lines into token files for `headrace train`.

Inputs: plain text (a file is one document) and .jsonl, each line an object with
  {"text": "..."}                          every token is trained on
  {"prompt": "...", "completion": "..."}   only the completion is trained on
  {"messages": [{"role": "user", "content": "..."}, ...]}
                                           the tokenizer's chat template is applied; only what the
                                           assistant says is trained on
Outputs by suffix:
  .safetensors   input_ids, and labels where something is masked (-100, as in Hugging Face)
  .bin           raw uint16 or uint32 tokens, as nanoGPT writes; no masks
Without --seq-len documents follow each other in one stream that is good for every sequence length.
With --seq-len S the output has rows of S tokens; a document that fits into a row is not cut, the
rest of a row is padding with label -100.

Tokenizer: a model folder or its tokenizer.json (needs the package tokenizers; chat messages also
need transformers and jinja2), or the word "bytes" for models with Headrace's byte-level vocabulary.

Examples:
  prepare_data.py book.txt --tokenizer models/smollm2 --output book.safetensors
  prepare_data.py chats.jsonl --tokenizer models/smollm2 --seq-len 1024 --output chats.safetensors
"""

import argparse
import array
import json
import os
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

IGNORED = -100
CHUNK_CHARACTERS = 1 << 20  # of a long text tokenized at a time
BATCH_CHARACTERS = 1 << 22  # of documents tokenized in parallel
NOT_TEXT = (".json", ".parquet", ".gz", ".zst", ".bin", ".safetensors")


class DataError(Exception):
    """Something in the input that the user has to put right."""


@dataclass
class Piece:
    """A document, or a part of a long one: texts that are tokenized apart, each with the character
    ranges (begin, end) in it that are trained on."""

    texts: list  # of (text, [(begin, end), ...])
    begins: bool = True
    ends: bool = True
    add_special: bool = True  # False where the chat template has put the special tokens


class ByteTokenizer:
    """Headrace's byte-level vocabulary: the bytes, then bos 256, eos 257, pad 258."""

    vocab_size = 259
    prefix = []
    eos_id = 257
    pad_id = 258

    def encode(self, texts):
        """For each text: token ids, and the character at which each token begins."""
        for text in texts:
            data = text.encode("utf-8")
            if len(data) == len(text):
                yield data, range(len(data))
            else:
                yield data, [i for i, c in enumerate(text) for _ in c.encode("utf-8")]

    def render_chat(self, messages, add_generation_prompt):
        raise DataError("the byte-level vocabulary has no chat template; use prompt and completion")


class FileTokenizer:
    """A tokenizer.json, with the special tokens that the files beside it name."""

    def __init__(self, path):
        try:
            import tokenizers
        except ImportError as error:
            raise DataError(f"{error}; pip install tokenizers") from error
        self.folder = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise DataError(f"--tokenizer {path}: there is no {file}; give a model folder with "
                            'tokenizer.json, or "bytes"')
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"{file} is not a tokenizer: {error}") from error
        self._chat = None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.eos_id = self._special("eos_token")
        pad = self._special("pad_token")
        self.pad_id = pad if pad is not None else self.eos_id if self.eos_id is not None else 0
        # What the tokenizer itself puts before a text (Llama 3 does, SmolLM2 does not).
        self.prefix = [i for i in self._tokenizer.encode("").ids if i != self.eos_id]

    def _special(self, key):
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            path = self.folder / name
            if not path.is_file():
                continue
            token = json.loads(path.read_text(encoding="utf-8")).get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if token is not None:
                return self._tokenizer.token_to_id(token)
        return None

    def encode(self, texts):
        for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False):
            yield encoding.ids, [begin for begin, _ in encoding.offsets]

    def render_chat(self, messages, add_generation_prompt):
        if self._chat is None:
            try:
                from transformers import AutoTokenizer
            except ImportError as error:
                raise DataError(
                    f"chat messages: {error}; pip install transformers jinja2") from error
            self._chat = AutoTokenizer.from_pretrained(str(self.folder))
        if not self._chat.chat_template:
            raise DataError(f"the tokenizer of {self.folder} has no chat template")
        return self._chat.apply_chat_template(messages, tokenize=False,
                                              add_generation_prompt=add_generation_prompt)


def chat_piece(messages, tokenizer):
    """The conversation as text; the trained ranges are found by rendering its beginnings."""
    if not isinstance(messages, list) or not messages:
        raise DataError('"messages" must be a list that is not empty')
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not all(
                isinstance(message.get(key), str) for key in ("role", "content")):
            raise DataError(f"message {i} must have the strings role and content")
    try:
        text = tokenizer.render_chat(messages, False)
        trained = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = tokenizer.render_chat(messages[:i], True) if i > 0 else ""
            until = tokenizer.render_chat(messages[:i + 1], False)
            if not (text.startswith(before) and text.startswith(until.rstrip())):
                raise DataError("the chat template changes earlier turns when later ones are "
                                "added; what the assistant says cannot be told apart")
            trained.append((len(before), len(until.rstrip())))
    except DataError:
        raise
    except Exception as error:  # jinja2 errors, and what templates raise
        raise DataError(f"the chat template fails: {error}") from error
    if not trained:
        raise DataError("no message has the role assistant: nothing to train on")
    return Piece([(text, trained)], ends=False, add_special=False)


def piece_of_line(line, tokenizer):
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error}") from error
    if not isinstance(entry, dict):
        raise DataError(f"expected an object, found {type(entry).__name__}")
    if "messages" in entry:
        return chat_piece(entry["messages"], tokenizer)
    if "prompt" in entry and "completion" in entry:
        prompt, completion = entry["prompt"], entry["completion"]
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise DataError('"prompt" and "completion" must be strings')
        return Piece([(prompt, []), (completion, [(0, len(completion))])])
    if "text" in entry:
        if not isinstance(entry["text"], str):
            raise DataError('"text" must be a string')
        return Piece([(entry["text"], [(0, len(entry["text"]))])])
    raise DataError('expected "text", "prompt" with "completion", or "messages"; found '
                    + (", ".join(map(repr, entry)) or "no key"))


def pieces_of_jsonl(path, tokenizer):
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield piece_of_line(line.decode("utf-8"), tokenizer), len(line)
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: not UTF-8: {error}") from error
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from error


def find_cut(text):
    """The last position where cutting does not change the tokens of a byte-level BPE: after a lone
    newline, else before a lone space; 0 if there is none."""
    for separator, offset in (("\n", 1), (" ", 0)):
        at = text.rfind(separator, 1, len(text) - 1)
        while at > 0:
            if not text[at - 1].isspace() and not text[at + 1].isspace():
                return at + offset
            at = text.rfind(separator, 1, at)
    return 0


def pieces_of_text(path):
    rest, begins = "", True
    with open(path, encoding="utf-8", newline="") as file:
        try:
            while chunk := file.read(CHUNK_CHARACTERS):
                rest += chunk
                cut = find_cut(rest) if len(rest) >= CHUNK_CHARACTERS else 0
                if cut > 0:
                    yield Piece([(rest[:cut], [(0, cut)])], begins, False), cut
                    rest, begins = rest[cut:], False
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text: {error}") from error
    if rest or not begins:
        yield Piece([(rest, [(0, len(rest))])], begins, True), len(rest)


def pieces_of_file(path, form, tokenizer):
    is_jsonl = form == "jsonl" or (form == "auto" and path.suffix in (".jsonl", ".ndjson"))
    if form == "auto" and path.suffix in NOT_TEXT:
        raise DataError(f"{path}: {path.suffix} is neither text nor JSON lines; set --format if "
                        "it is")
    return pieces_of_jsonl(path, tokenizer) if is_jsonl else pieces_of_text(path)


def batches(pieces):
    """Lists of (piece, input size) with enough text to keep all cores busy."""
    batch, characters = [], 0
    for item in pieces:
        batch.append(item)
        characters += sum(len(text) for text, _ in item[0].texts)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def labels_of(ids, starts, trained):
    labels, position = [IGNORED] * len(ids), 0
    for begin, end in trained:
        while position < len(ids) and starts[position] < begin:
            position += 1
        while position < len(ids) and starts[position] < end:
            labels[position] = ids[position]
            position += 1
    return labels


def documents(pieces, tokenizer, add_eos, progress):
    """Yields (ids, labels) of each piece."""
    for batch in batches(pieces):
        encoded = tokenizer.encode([text for piece, _ in batch for text, _ in piece.texts])
        for piece, size in batch:
            ids, labels = [], []
            if piece.begins and piece.add_special:
                ids += tokenizer.prefix
                labels += [IGNORED] * len(tokenizer.prefix)
            for _, trained in piece.texts:
                part, starts = next(encoded)
                ids += part
                labels += labels_of(part, starts, trained)
            if piece.ends and add_eos:
                ids.append(tokenizer.eos_id)
                labels.append(tokenizer.eos_id)
            progress.add(size, len(ids))
            yield ids, labels


class Progress:
    """A line on stderr every two seconds."""

    def __init__(self, total):
        self.total, self.done, self.tokens = total, 0, 0
        self._next = time.monotonic() + 2

    def add(self, size, tokens):
        self.done += size
        self.tokens += tokens
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 2
            print(f"{min(100, 100 * self.done // max(1, self.total))} %, {self.tokens:,} tokens",
                  file=sys.stderr, flush=True)


class Rows:
    """Packs documents into rows of `length`; passes (ids, labels) of whole rows on."""

    def __init__(self, length, pad_id, sink):
        self._length, self._pad_id, self._sink = length, pad_id, sink
        self._ids, self._labels = [], []

    def add(self, ids, labels):
        if len(self._ids) + len(ids) > self._length:
            self.flush()
        for begin in range(0, len(ids), self._length):
            self._ids += ids[begin:begin + self._length]
            self._labels += labels[begin:begin + self._length]
            if len(self._ids) == self._length:
                self.flush()

    def flush(self):
        if self._ids:
            missing = self._length - len(self._ids)
            self._sink.add(self._ids + [self._pad_id] * missing,
                           self._labels + [IGNORED] * missing)
            self._ids, self._labels = [], []


class TokenWriter:
    """Collects tokens in temporary files beside the output, so that memory stays small."""

    def __init__(self, output, bin_type):
        self._output, self._bin_type = output, bin_type
        self._ids = tempfile.TemporaryFile(dir=output.parent)
        self._labels = tempfile.TemporaryFile(dir=output.parent)
        self.count, self.trained, self.masked = 0, 0, False

    def add(self, ids, labels):
        is_bin = self._output.suffix == ".bin"
        array.array(self._bin_type if is_bin else "i", ids).tofile(self._ids)
        self.count += len(ids)
        ignored = labels.count(IGNORED)
        self.trained += len(labels) - ignored
        self.masked = self.masked or ignored > 0
        if is_bin and self.masked:
            raise DataError(f"{self._output}: .bin has no room for masks (prompts, chats, padding, "
                            "special tokens at the start); write .safetensors")
        if not is_bin:
            array.array("i", labels).tofile(self._labels)

    def finish(self, row_length):
        parts = [("input_ids", self._ids)] + ([("labels", self._labels)] if self.masked else [])
        partial = self._output.with_name(f"{self._output.name}.partial-{os.getpid()}")
        try:
            with open(partial, "wb") as out:
                if self._output.suffix == ".safetensors":
                    out.write(self._header([name for name, _ in parts], row_length))
                for _, part in parts:
                    part.seek(0)
                    while block := part.read(1 << 20):
                        out.write(block)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, self._output)
        finally:
            partial.unlink(missing_ok=True)

    def _header(self, names, row_length):
        size = 4 * self.count
        shape = [self.count // row_length, row_length] if row_length else [self.count]
        header = {name: {"dtype": "I32", "shape": shape, "data_offsets": [i * size, (i + 1) * size]}
                  for i, name in enumerate(names)}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text


def prepare(args):
    tokenizer = ByteTokenizer() if str(args.tokenizer) == "bytes" else FileTokenizer(args.tokenizer)
    for path in args.input:
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        if args.output.exists() and path.samefile(args.output):
            raise DataError(f"{path} is input and output")
    if not args.no_eos and tokenizer.eos_id is None:
        raise DataError("the tokenizer names no eos token to end documents with; use --no-eos")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    writer = TokenWriter(args.output, "H" if tokenizer.vocab_size <= 1 << 16 else "I")
    sink = Rows(args.seq_len, tokenizer.pad_id, writer) if args.seq_len else writer
    progress = Progress(sum(path.stat().st_size for path in args.input))
    pieces = (piece for path in args.input
              for piece in pieces_of_file(path, args.format, tokenizer))
    for ids, labels in documents(pieces, tokenizer, not args.no_eos, progress):
        sink.add(ids, labels)
    if args.seq_len:
        sink.flush()
    if writer.trained == 0:
        raise DataError("the input has no tokens to train on")
    writer.finish(args.seq_len)
    shape = "one stream"
    if args.seq_len:
        shape = f"{writer.count // args.seq_len:,} rows of {args.seq_len}"
    print(f"{args.output}: {writer.count:,} tokens, {writer.trained:,} trained on, {shape}; "
          f"vocabulary {tokenizer.vocab_size:,}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", nargs="+", type=Path, help="text or JSON lines")
    parser.add_argument("--tokenizer", required=True, type=Path,
                        help='model folder, tokenizer.json, or "bytes"')
    parser.add_argument("--output", required=True, type=Path, help=".safetensors or .bin file")
    parser.add_argument("--seq-len", type=int, default=0, metavar="S",
                        help="rows of S tokens (.safetensors only) instead of one stream")
    parser.add_argument("--format", choices=["auto", "text", "jsonl"], default="auto",
                        help="of the inputs (default: by suffix, .jsonl or text)")
    parser.add_argument("--no-eos", action="store_true", help="no eos token after documents")
    args = parser.parse_args(argv)
    if args.output.suffix not in (".safetensors", ".bin"):
        parser.error("--output must end in .safetensors or .bin")
    if args.seq_len < 0 or args.seq_len == 1:
        parser.error("--seq-len must be 2 or more")
    if args.seq_len and args.output.suffix == ".bin":
        parser.error(".bin is one stream; --seq-len needs .safetensors")
    try:
        prepare(args)
    except (DataError, OSError, json.JSONDecodeError) as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
