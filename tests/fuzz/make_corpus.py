"""Makes the hand-made part of tests/fuzz/corpus: `valid*` is accepted, `bad*` is refused.

    python3 tests/fuzz/make_corpus.py

Needs protoc. Files with other names are inputs that were findings, or that reach code which the
hand-made ones do not; they stay as they are.
"""

import json
import pathlib
import struct
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "tests" / "fuzz" / "corpus"


def put(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def encode(schema, message, text):
    """The bytes of a protobuf message, given in text form."""
    return subprocess.run(
        ["protoc", "--proto_path=.", f"--encode=headrace.proto.{message}", f"proto/{schema}.proto"],
        input=text.encode(), stdout=subprocess.PIPE, check=True, cwd=REPOSITORY,
    ).stdout  # fmt: skip


def ds_config():
    config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.1,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100}},
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 1e8,
            "offload_param": {"device": "cpu"},
            "offload_optimizer": {"device": "nvme", "nvme_path": "/d", "pipeline_read": True},
        },
        "aio": {"thread_count": 2, "block_size": 1048576},
        "headrace": {"device_memory": "64MiB", "nvme_path": ["/a", "/b"], "seed": 7},
    }
    text = json.dumps(config)
    put("ds_config", "valid", text)
    put("ds_config", "valid_comments", "{ // one\n /* two */ \"bf16\": {\"enabled\": true} }")
    put("ds_config", "valid_empty", "{}")
    put("ds_config", "bad_cut", text[:-20])
    put("ds_config", "bad_deep", "[" * 3000)
    put("ds_config", "bad_key", '{"zero_optimisation": {"stage": 9e99}, "fp16": {"enabled": "x"}}')
    put("ds_config", "bad_numbers", '{"train_batch_size": 1e400, "gradient_clipping": -1}')


def model_config():
    config = {
        "model_type": "llama", "vocab_size": 67, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    }  # fmt: skip
    put("model_config", "valid", json.dumps(config))
    put("model_config", "bad_heads", json.dumps({**config, "num_attention_heads": 0}))
    put("model_config", "bad_layers", json.dumps({**config, "num_hidden_layers": 1 << 40}))
    put("model_config", "bad_type", json.dumps({**config, "model_type": "gpt"}))
    return config


def safetensors_bytes(tensors, data, length=None):
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors():
    two = {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 2], 0, 16),
           "b": tensor("BF16", [3], 16, 22)}  # fmt: skip
    put("safetensors", "valid", safetensors_bytes(two, bytes(22)))
    put("safetensors", "bad_overlap", safetensors_bytes(
        {"a": tensor("F32", [4], 0, 16), "b": tensor("F32", [4], 8, 24)}, bytes(24)))  # fmt: skip
    put("safetensors", "bad_length", safetensors_bytes(two, bytes(22), 1 << 62))
    put("safetensors", "bad_shape", safetensors_bytes(
        {"a": tensor("F32", [1 << 40, 1 << 40], 0, 16)}, bytes(16)))  # fmt: skip
    put("safetensors", "bad_short", safetensors_bytes(two, bytes(10)))


def tokens():
    # Byte 0: name, dtype, vocabulary and sequence length, as in model_file_targets.cc.
    ids = struct.pack("<60H", *[i * 7 % 256 for i in range(60)])
    put("tokens", "valid_bin", b"\x00" + ids)
    put("tokens", "valid_bin_u32", b"\x18" + struct.pack("<60I", *range(60)))
    put("tokens", "valid_llmc", b"\x00" + struct.pack("<3i", 20240520, 1, 60) + bytes(1012) + ids)
    put("tokens", "valid_text", b"\x22" + b"some plain text, long enough to be cut in sequences")
    put("tokens", "valid_rows", b"\x11" + safetensors_bytes(
        {"input_ids": tensor("I64", [10, 4], 0, 320), "labels": tensor("I64", [10, 4], 320, 640)},
        struct.pack("<80q", *[i % 50 for i in range(80)])))  # fmt: skip
    put("tokens", "bad_vocabulary", b"\x10" + struct.pack("<60H", *range(300, 360)))
    put("tokens", "bad_llmc", b"\x00" + struct.pack("<3i", 20240520, 1, -5) + bytes(1012) + ids)
    put("tokens", "bad_odd", b"\x00" + ids[:-1])


def pairs(entries):
    """The form of the target's input: lengths of 16 bits before every key and value."""
    text = b""
    for key, value in entries:
        for part in (key.encode(), value):
            text += struct.pack("<H", len(part)) + part
    return text


def extents(*places):
    return " ".join(
        f"extents {{ path: 0 file: 0 offset: {offset} length: {length} xxh3_64: 5 }}"
        for offset, length in places
    )


def catalog():
    def record(name, text):
        return encode("catalog", name, text)

    store = ("store", record("StoreRecord",
             'format_version: 2 run_id: "r" directories: "/run" weights: 1'))  # fmt: skip
    generation = ("generation", record("GenerationRecord",
                  'generation: 7 committed_unix_nanoseconds: 9 '
                  'run_state { key: "run" value: "x" }'))  # fmt: skip

    def an_object(text):
        return ("object/a", record("ObjectRecord", text))

    good = an_object("size: 12288 generation: 7 " + extents((0, 8192), (65536, 4096)))
    snapshot = f"snapshot/{5:020d}/"
    kept = [
        (snapshot + "record", record("SnapshotRecord",
         "generation { generation: 5 } taken_unix_nanoseconds: 3 automatic: true")),
        (snapshot + "object/a", record("ObjectRecord", "size: 5 generation: 5 "
         + extents((131072, 5)))),
        (snapshot + "object/b", record("ObjectRecord", "size: 0 generation: 1")),
    ]  # fmt: skip
    updating = ("updating", record("UpdatingRecord", "next_generation: 8"))
    put("catalog", "valid", pairs([store, generation, good, *kept]))
    put("catalog", "valid_torn", pairs([store, generation, good, updating]))
    put("catalog", "valid_empty", pairs([store]))
    put("catalog", "bad_no_store", pairs([generation, good]))
    put("catalog", "bad_newer", pairs([("store", record("StoreRecord", "format_version: 99"))]))
    put("catalog", "bad_key", pairs([store, ("objects", b"")]))
    put("catalog", "bad_snapshot", pairs([store, kept[1]]))
    put("catalog", "bad_sum", pairs([store, an_object("size: 9 " + extents((0, 4)))]))
    put("catalog", "bad_negative", pairs([store, an_object("size: -1 " + extents((0, -1)))]))
    put("catalog", "bad_overlap", pairs([store, an_object("size: 8192 "
        + extents((0, 4096), (0, 4096)))]))  # fmt: skip
    put("catalog", "bad_outside", pairs([store, an_object("size: 4096 "
        + extents((1 << 62, 4096)))]))  # fmt: skip


LAYOUT = """
  layout {{
    dtype: "{dtype}" master: "{master}" moments: 2 moment_dtype: "{moments}" optimizer: "adam"
    modules {{
      name: "head" count: {count} weights: "w"
      parameters {{ name: "a" shape: 40 shape: 50 offset: 0 count: 2000 }}
      parameters {{ name: "b" shape: 100 offset: 2048 count: 100 }}
      shards {{ first: 0 count: {shard} state: "s" }}
      shards {{ first: {shard} count: {rest} state: "s" }}
    }}
  }}
"""


def run_state(config):
    def state(dtype, master, count, shard, rest, more="", moments="f32"):
        text = LAYOUT.format(dtype=dtype, master=master, count=count, shard=shard, rest=rest, moments=moments)
        quoted = json.dumps(config).replace("\\", "\\\\").replace('"', '\\"')
        return encode("run_state", "RunState", f'step: 3 updates: 3 {text} '
                      f'model_config_json: "{quoted}" {more}')  # fmt: skip

    put("run_state", "valid_split", state("bf16", "split", 2560, 2048, 512,
        'settings { key: "seed" value: "1" } loss_scaler { scale: 65536 }'))  # fmt: skip
    put("run_state", "valid_state", state("f16", "state", 2560, 2048, 512))
    put("run_state", "valid_weight", state("f32", "weight", 2560, 512, 2048))
    put("run_state", "valid_8bit", state("bf16", "split", 2560, 2048, 512, moments="u8"))
    put("run_state", "bad_8bit_weights", state("u8", "split", 2560, 2048, 512))
    put("run_state", "bad_shards", state("f32", "weight", 2560, 512, 512))
    put("run_state", "bad_master", state("f32", "split", 2560, 2048, 512))
    put("run_state", "bad_overflow",
        state("bf16", "split", 2560, (1 << 63) - 1, (1 << 63) - 1))  # fmt: skip
    put("run_state", "bad_huge", state("bf16", "split", 1 << 62, 1 << 61, 1 << 61))
    put("run_state", "bad_no_layout", encode("run_state", "RunState", "step: 3"))


def torch_file():
    accepted = ("bf16", "dictionary", "f16", "flat", "number", "number_as_tensor", "parameter", "view")
    for path in sorted((REPOSITORY / "tests/golden/data/torch").glob("*.pt")):
        prefix = "valid_" if path.stem in (*accepted, "tensor") else "bad_"
        put("torch_file", prefix + path.stem, path.read_bytes())


def trace():
    text = """
      description: "made by hand" step: "training" policy: "optimal" name: "t"
      objects {{ name: "w" size: 4096 floor: TRACE_TIER_NVME home: TRACE_TIER_NVME }}
      objects {{ name: "x" size: 8192 floor: TRACE_TIER_HOST }}
      operations {{ name: "f" lane: COMPUTE seconds: 0.5 starts_pass: true
        uses {{ object: 0 tier: TRACE_TIER_HOST access: READ }}
        uses {{ object: 1 tier: TRACE_TIER_HOST access: WRITE }} }}
      operations {{ name: "b" lane: CPU_OPTIMIZER seconds: 0.25 in_order: true
        uses {{ object: 0 tier: TRACE_TIER_HOST access: UPDATE }}
        uses {{ object: 1 tier: TRACE_TIER_HOST access: READ discard_after: true }} }}
      budgets {{ device: 0 host: 65536 alignment: {alignment} }}
      rates {{ nvme_read: 1e9 nvme_write: 1e9 host_to_device: {rate} device_to_host: 1e10 }}
      rounds {{ number: 1
        actions {{ kind: TRANSFER object: 0 from: TRACE_TIER_NVME to: TRACE_TIER_HOST offset: 0 }}
        actions {{ kind: PLACE object: 1 from: TRACE_TIER_HOST to: TRACE_TIER_HOST offset: 4096 }}
        actions {{ kind: OPERATION operation: 0 from: TRACE_TIER_HOST to: TRACE_TIER_HOST
                   after: 0 after: 1 }}
        actions {{ kind: OPERATION operation: 1 from: TRACE_TIER_HOST to: TRACE_TIER_HOST
                   after: {after} }}
        actions {{ kind: TRANSFER object: 0 from: TRACE_TIER_HOST to: TRACE_TIER_NVME after: 3 }}
        actions {{ kind: DROP object: 1 from: TRACE_TIER_HOST to: TRACE_TIER_HOST after: 3 }}
        final {{ object: 0 tier: TRACE_TIER_HOST offset: 0 }}
        peak_host: 12288 nvme_read: 4096 nvme_write: 4096 predicted_seconds: 0.75 }}
    """

    def made(alignment=4096, rate=1e10, after=2):
        return encode("trace", "TraceRecord", text.format(alignment=alignment, rate=rate, after=after))

    put("trace", "valid", made())
    put("trace", "bad_alignment", made(alignment=-3))
    put("trace", "bad_rate", made(rate=0))
    put("trace", "bad_forward", made(after=4))
    put("trace", "bad_magic", b"HRTRACE\0" + bytes(24) + made())
    put("trace", "bad_short", b"HRTRACE\0" + bytes(9))


def profile():
    point = 'engine: "io_uring, O_DIRECT" file_size: 1048576 direct: true'
    record = encode("profile", "HardwareProfile", f"""
      machine {{ hostname: "node" cores: 2 memory {{ threads: 1 bytes_per_second: 1e10 }}
        optimizer {{ state: "fp32" elements_per_second: 1e9 bytes_per_element: 28 }}
        matmul {{ dtype: "f32" flops_per_second: nan }} host_to_device_rate: inf }}
      storage {{ key: "drive" path: "/d" {point} }}""")  # fmt: skip
    put("profile", "valid", record)
    put("profile", "bad_cut", record[:-3])
    put("profile", "newer", encode("profile", "ProfileFile", "format_version: 99"))


def main():
    ds_config()
    run_state(model_config())
    safetensors()
    tokens()
    catalog()
    torch_file()
    trace()
    profile()


if __name__ == "__main__":
    main()
