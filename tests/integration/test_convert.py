"""`halfstep convert` as a process: Hugging Face out and back with `transformers` as the judge, other formats of a
checkpoint, and what it refuses."""

import json
import pathlib
import resource
import shutil

import pytest
import torch
from program import TINY, failure, halfstep
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

STORED_V1 = pathlib.Path(__file__).parents[1] / "data" / "checkpoint_v1"
SIZES = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
FOLDERS = {  # model, dtype, tied, largest shard
    "fp32": (Qwen3ForCausalLM, Qwen3Config, torch.float32, False, "1GB"),
    "bf16_sharded": (Qwen3ForCausalLM, Qwen3Config, torch.bfloat16, False, "5KB"),
    "fp16": (LlamaForCausalLM, LlamaConfig, torch.float16, False, "1GB"),
    "bf16_tied": (Qwen3ForCausalLM, Qwen3Config, torch.bfloat16, True, "1GB"),
    "fp32_tied_sharded": (LlamaForCausalLM, LlamaConfig, torch.float32, True, "5KB"),
}


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request, tmp_path_factory):
    """(A Hugging Face folder with weights of random bits and a tokenizer, its dtype.)"""
    model_class, config_class, dtype, tied, shard = FOLDERS[request.param]
    torch.manual_seed(7)
    model = model_class(config_class(**SIZES, head_dim=8, tie_word_embeddings=tied, eos_token_id=3,
                                     bos_token_id=None, pad_token_id=None))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.3
    path = tmp_path_factory.mktemp("hf") / "model"
    model.to(dtype).save_pretrained(path, max_shard_size=shard)
    assert (path / "model.safetensors.index.json").exists() == (shard == "5KB")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(60)} | {"?": 60}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(path)
    return path, dtype


def convert(*args):
    done = halfstep("convert", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tensors(path):
    """{name: tensor} of a Hugging Face folder, by `safetensors` alone."""
    found = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                assert name not in found
                found[name] = opened.get_tensor(name)
    return found


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def logits(path):
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    with torch.no_grad():
        return model(torch.arange(40).reshape(2, 20)).logits


@pytest.mark.parametrize("shard", ["5GB", "4KB"])
def test_out_and_back_no_bit_changes(folder, shard, tmp_path):
    source, dtype = folder
    formats = ["--bf16", "--master", "split"] if dtype == torch.bfloat16 else []
    imported = convert("--load-hf", source, "--save", tmp_path / "run", *formats)
    convert("--load", tmp_path / "run", "--save-hf", tmp_path / "back", "--max-shard-size", shard)
    before, after = tensors(source), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        # An F16 weight becomes FP32, which holds all of its values.
        wide = tensor.float() if dtype == torch.float16 else tensor
        assert same_bytes(wide, after[name]), name
    assert all(c["max_relative_error"] == 0 for c in imported["classes"])

    index = tmp_path / "back" / "model.safetensors.index.json"
    assert index.exists() == (shard == "4KB")
    if index.exists():
        document = json.loads(index.read_text())
        assert document["weight_map"].keys() == after.keys()
        assert document["metadata"]["total_size"] == sum(t.nbytes for t in after.values())
    assert torch.equal(logits(source), logits(tmp_path / "back"))
    # Loaded as any user does, the model has the dtype of its weights.
    auto = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert auto.dtype == (torch.float32 if dtype == torch.float16 else dtype)
    assert auto.config.eos_token_id == 3
    ids = AutoTokenizer.from_pretrained(tmp_path / "back")("w5 w7 nothing")["input_ids"]
    assert ids == AutoTokenizer.from_pretrained(source)("w5 w7 nothing")["input_ids"] == [5, 7, 60]


def test_an_imported_model_is_one_that_training_begins_with(folder, tmp_path):
    """convert and `train --load` write the bits of `train --load-hf`, also where the folder has more than BF16."""
    source, _ = folder
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i * i % 59}" for i in range(2000)))
    run = ["--data", text, "--seq-length", 16, "--micro-batch-size", 2, "--train-iters", 3, "--lr", 1e-2, "--seed", 5,
           "--matmul-precision", "fp32", "--num-threads", 1, "--split", "100,0,0", "--eval-iters", 0]
    formats = ["--bf16", "--master", "split", "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "ue6m10"]
    convert("--load-hf", source, "--save", tmp_path / "imported", *formats)
    resumed = halfstep("train", "--load", tmp_path / "imported", "--save", tmp_path / "a", *run)
    assert resumed.returncode == 0, resumed.stderr
    direct = halfstep("train", "--load-hf", source, "--tokenizer", source, "--save", tmp_path / "b", *formats, *run)
    assert direct.returncode == 0, direct.stderr
    shards = [(tmp_path / x / "step_00000003" / "shard_00001_of_00001.safetensors").read_bytes() for x in "ab"]
    assert shards[0] == shards[1]


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """A checkpoint with FP32 weights and state."""
    path = tmp_path_factory.mktemp("trained")
    done = halfstep("train", *TINY, "--train-iters", 4, "--data", text, "--save", path)
    assert done.returncode == 0, done.stderr
    return path


def test_a_run_goes_on_in_other_formats(trained, text, tmp_path):
    report = convert("--load", trained, "--save", tmp_path / "o2", "--bf16", "--reuse-fp32-param", "--o2-optimizer",
                     "--exp-avg-sq-dtype", "ue6m10")
    rows = {c["class"]: c for c in report["classes"]}
    assert [(rows[c]["from"], rows[c]["to"]) for c in ("weight", "master", "exp_avg", "exp_avg_sq")] == [
        ("fp32", "bf16"), ("none", "split"), ("fp32", "bf16"), ("fp32", "ue6m10")]
    assert 0 < rows["exp_avg"]["max_relative_error"] <= 2**-8
    assert rows["exp_avg"]["bytes_before"] == 2 * rows["exp_avg"]["bytes_after"]
    assert halfstep("inspect", tmp_path / "o2", "--verify").returncode == 0
    # No format has to be named: they are the checkpoint's.
    done = halfstep("train", "--load", tmp_path / "o2", "--save", tmp_path / "o2", "--train-iters", 6)
    assert done.returncode == 0, done.stderr
    state = json.loads(halfstep("inspect", tmp_path / "o2", "--json").stdout)["state"]
    assert state["iteration"] == 6 and state["storage"]["exp_avg_sq"] == "ue6m10" and state["storage"]["master"] == "split"
    # And back. The text for people says what happened.
    back = halfstep("convert", "--load", tmp_path / "o2", "--save", tmp_path / "fp32", "--dtype", "fp32",
                    "--exp-avg-dtype", "fp32", "--exp-avg-sq-dtype", "fp32")
    assert back.returncode == 0 and "rounded to nearest" in back.stdout and "split -> none" in back.stdout
    done = halfstep("train", "--load", tmp_path / "fp32", "--save", tmp_path / "fp32", "--train-iters", 7)
    assert done.returncode == 0, done.stderr


def test_the_stored_checkpoint_of_version_1_converts_and_a_newer_one_is_named(tmp_path):
    assert "every checksum matches" in halfstep("inspect", STORED_V1, "--verify").stdout
    report = convert("--load", STORED_V1, "--save-hf", tmp_path / "hf", "--dtype", "fp32")
    assert report["classes"][0]["from"] == "bf16+fp32" and report["iteration"] == 6
    assert "no tokenizer copied: the bytes are the tokens" in report["notes"]
    assert len(tensors(tmp_path / "hf")) == len(list(AutoModelForCausalLM.from_pretrained(tmp_path / "hf").parameters()))

    newer = tmp_path / "newer"
    shutil.copytree(STORED_V1, newer)
    manifest = newer / "step_00000006" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 2'))
    for command in (["inspect", newer], ["convert", "--load", newer, "--save-hf", tmp_path / "x"],
                    ["generate", "--load", newer, "--prompt", "a"]):
        first, second = failure(halfstep(*command), 3)
        assert "checkpoint format 2, this halfstep reads up to 1" in first and "knows format 2" in second


def left(path):
    return sorted(p.name for p in path.iterdir())


@pytest.mark.parametrize("target", ["--save", "--save-hf"])
def test_a_damaged_source_and_a_full_disk_leave_nothing(trained, target, tmp_path):
    shutil.copytree(trained / "step_00000004", tmp_path / "step_00000004")
    shard = next((tmp_path / "step_00000004").glob("*.safetensors"))
    # Exports read weights alone: the first weight's first byte.
    manifest = json.loads((tmp_path / "step_00000004" / "manifest.json").read_text())
    entry = next(s for s in manifest["slices"] if s["kind"] == "weight")
    data = bytearray(shard.read_bytes())
    data[entry["offset"]] ^= 1
    shard.write_bytes(data)
    (tmp_path / "out").mkdir()
    first, _ = failure(halfstep("convert", "--load", tmp_path / "step_00000004", target, tmp_path / "out" / "x"), 3)
    assert shard.name in first and f"weight/{entry['name']}" in first
    assert left(tmp_path / "out") == []
    shard.write_bytes(data[:-1])
    first, _ = failure(halfstep("convert", "--load", tmp_path / "step_00000004", target, tmp_path / "out" / "x"), 3)
    assert shard.name in first and left(tmp_path / "out") == []

    # No file may grow beyond 8 KiB.
    done = halfstep("convert", "--load", trained, target, tmp_path / "out" / "x",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 10, 8 << 10)))
    first, second = failure(done, 3)
    assert "File too large" in first and "free some space" in second
    assert left(tmp_path / "out") == []


@pytest.mark.parametrize("args, code, what", [
    (["--save", "X"], 2, "--load and --load-hf both, or none"),
    (["--load", "CKPT"], 2, "--save and --save-hf both, or none"),
    (["--load-hf", "X", "--save-hf", "Y"], 2, "one side has to be a checkpoint"),
    (["--load", "CKPT", "--save", "CKPT"], 2, "is the folder that --load reads"),
    (["--load", "CKPT", "--save-hf", "CKPT"], 2, "is not empty"),
    (["--load", "CKPT", "--save-hf", "X", "--o2-optimizer"], 2, "--o2-optimizer has no effect here"),
    (["--load", "CKPT", "--save-hf", "X", "--max-shard-size", "0"], 2, "--max-shard-size 0"),
    (["--load", "CKPT", "--save-hf", "X", "--max-shard-size", "much"], 2, "--max-shard-size"),
    (["--load", "CKPT", "--save-hf", "X", "--tokenizer", "/nowhere"], 3, "--tokenizer /nowhere"),
    (["--load", "CKPT", "--save", "X", "--max-shard-size", "1GB"], 2, "--max-shard-size has no effect here"),
    (["--load", "CKPT", "--save", "X", "--master", "split"], 2, "FP32 weights are their own master"),
    (["--load", "CKPT", "--save", "X", "--bf16", "--dtype", "fp32"], 2, "--bf16 contradicts --dtype fp32"),
    (["--load", "CKPT", "--save", "X", "--bf16", "--master", "none", "--reuse-fp32-param"], 2, "contradicts --master none"),
    (["--load", "CKPT", "--save", "X", "--exp-avg-dtype", "ue6m10"], 2, "--exp-avg-dtype"),
    (["--load-hf", "/nowhere", "--save", "X"], 3, "/nowhere"),
    (["--load-hf", "/nowhere", "--save", "X", "--allow-lossy-master"], 2, "--allow-lossy-master has no effect"),
    (["--load", "/nowhere", "--save", "X"], 3, "/nowhere"),
])
def test_what_cannot_be_is_refused_before_anything_is_written(trained, args, code, what, tmp_path):
    names = {"CKPT": trained, "X": tmp_path / "x", "Y": tmp_path / "y"}
    before = left(trained)
    first, _ = failure(halfstep("convert", *(names.get(a, a) for a in args)), code)
    assert what in first
    assert left(tmp_path) == [] and left(trained) == before


def test_the_current_folder_lends_an_export_nothing(trained, tmp_path):
    """Its tokenizer is the bytes: no folder, and no token ids of whatever model one stands in."""
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (tmp_path / "byte").mkdir()
    (tmp_path / "byte" / "tokenizer.json").write_text("{}")
    done = halfstep("convert", "--load", trained, "--save-hf", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "eos_token_id" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_a_folder_in_the_way_of_an_export_is_not_emptied(trained, tmp_path):
    own = tmp_path / "out.saving" / "thesis.txt"
    own.parent.mkdir()
    own.write_text("years of work")
    first, hint = failure(halfstep("convert", "--load", trained, "--save-hf", tmp_path / "out"), 2)
    assert "thesis.txt" in first and "move that folder" in hint
    assert own.read_text() == "years of work" and not (tmp_path / "out").exists()
