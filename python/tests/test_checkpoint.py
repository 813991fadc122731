"""halfstep.load_checkpoint against checkpoints that the program wrote, read by `safetensors` and torch too."""

import hashlib
import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
import xxhash
from safetensors import safe_open

import halfstep
from halfstep import checkpoint as reader
from halfstep.checkpoint import CheckpointError, NewerFormatError

STORED_V1 = pathlib.Path(__file__).parents[2] / "tests" / "data" / "checkpoint_v1"
FLAGS = """--num-layers 1 --hidden-size 8 --ffn-hidden-size 24 --num-attention-heads 2 --qk-layernorm
  --seq-length 16 --micro-batch-size 1 --global-batch-size 3 --train-iters 6 --save-interval 3 --lr 1e-2
  --matmul-precision fp32 --num-threads 1 --tokenizer byte --split 100,0,0 --eval-iters 0 --bf16
  --reuse-fp32-param --exp-avg-dtype bf16 --exp-avg-sq-dtype ue6m10 --fp32-params norm""".split()


def whole_tensors(folder):
    """{(kind, name): (dtype, shape, tensor as it is stored)}, by the documented format alone."""
    manifest = json.loads((folder / "manifest.json").read_text())
    shards = [safe_open(folder / shard["file"], framework="pt") for shard in manifest["shards"]]
    parts = {}
    for entry in manifest["slices"]:
        key = f"{entry['kind']}/{entry['name']}"
        if entry["numel"] < math.prod(entry["shape"]):
            key += f"+{entry['start']}"
        data = shards[entry["shard"]].get_tensor(key).reshape(-1)
        about = (entry["dtype"], tuple(entry["shape"]))
        parts.setdefault((entry["kind"], entry["name"]), (about, []))[1].append((entry["start"], data))
    return {
        key: (*about, torch.cat([data for _, data in sorted(pieces, key=lambda p: p[0])]))
        for key, (about, pieces) in parts.items()
    }


def raw(tensor):
    return tensor.view(torch.uint8).numpy().tobytes()


def listing(folder):
    """What tests/data/checkpoint_v1/listing.json holds: the bytes of each whole tensor, by their hashes."""
    return {
        f"{kind}/{name}": {
            "dtype": dtype,
            "shape": shape,
            "sha256": hashlib.sha256(raw(tensor)).hexdigest(),
            "xxh3": xxhash.xxh3_64_hexdigest(raw(tensor)),
        }
        for (kind, name), (dtype, shape, tensor) in sorted(whole_tensors(folder).items())
    }


def ue6m10(code):
    """A number of docs/numerics.md §3, in FP64."""
    exponent, mantissa = code >> 10, code & 0x3FF
    if code == 0xFFFF:
        return math.nan
    return math.ldexp(mantissa, -62) if exponent == 0 else math.ldexp(1 + mantissa / 1024, exponent - 53)


def train(folder, text, ranks):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [os.environ["HALFSTEP_BINARY"], "train", *FLAGS, "--data", text, "--save", folder]
    variables = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            list(map(str, command)),
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (variables | {"RANK": str(rank)} if ranks > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs


@pytest.fixture(scope="module", params=[1, 3])
def run(request, tmp_path_factory):
    """A run with checkpoints of steps 3 and 6."""
    folder = tmp_path_factory.mktemp("run")
    text = folder / "text.txt"
    text.write_text("".join(f"the {i * 7 % 11} dogs saw {i * i % 13} cats\n" for i in range(200)))
    train(folder / "run", text, request.param)
    assert len(list((folder / "run" / "step_00000006").glob("*.safetensors"))) == request.param
    return folder / "run"


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def test_every_tensor_is_assembled_and_decoded_exactly(run):
    opened = halfstep.load_checkpoint(run)
    expected = whole_tensors(run / "step_00000006")
    assert opened.path == run / "step_00000006" and opened.iteration == 6 and opened.verifies
    assert opened.storage["master"] == "split" and opened.model_config["hidden_size"] == 8
    assert opened.hyperparameters["lr"] == 0.01
    assert {(k, name) for name, p in opened.items() for k in p.kinds} == expected.keys()
    for name, parameter in opened.items():
        assert parameter.t == 6
        for kind, tensor in parameter.tensors.items():
            dtype, shape, stored = expected[kind, name]
            assert (tensor.dtype, tensor.shape, parameter.shape) == (dtype, shape, shape)
            values = tensor.numpy()
            assert values.shape == shape and values.tobytes() == raw(stored), (kind, name)
            if dtype == "fp32":
                decoded = stored
            elif dtype == "bf16":
                decoded = stored.float()
            elif dtype == "ue6m10":
                decoded = torch.tensor([ue6m10(int(code)) for code in stored.to(torch.int32) & 0xFFFF])
            else:
                with pytest.raises(TypeError, match="master"):
                    tensor.float32()
                continue
            assert tensor.float32().dtype == np.float32
            assert np.array_equal(tensor.float32().ravel(), decoded.numpy().astype(np.float32)), (kind, name)
        weight = expected["weight", name][2]
        if "remainder" in parameter.kinds:
            codes = weight.view(torch.int16).to(torch.int64) & 0xFFFF
            bits = (codes << 16) + expected["remainder", name][2].to(torch.int64)
            master = bits.numpy().astype(np.uint32).view(np.float32)
        else:
            assert "norm" in name
            master = weight.numpy()
        assert np.array_equal(parameter.master().ravel(), master)
    opened.verify()


def test_every_code_is_decoded():
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = reader.decode_ue6m10(codes)
    assert all(float(values[code]) == ue6m10(code) for code in range((1 << 16) - 1)) and np.isnan(values[-1])
    expected = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float().numpy()
    assert np.array_equal(reader.decode_bf16(codes), expected, equal_nan=True)


def test_a_box_is_put_in_its_place():
    """Tensor-parallel slices, which this version's trainer does not write: a range in a box of columns."""
    whole = np.zeros((4, 5), np.float32)
    part = reader.Slice(box=(1, 4, 2, 4), start=1, numel=4, file="f", offset=0, num_bytes=16, checksums=())
    reader._place(whole, np.array([1, 2, 3, 4], np.float32), part)
    assert whole.tolist() == [[0] * 5, [0, 0, 0, 1, 0], [0, 0, 2, 3, 0], [0, 0, 4, 0, 0]]
    outside = reader.Slice(box=(1, 5, 2, 4), start=1, numel=4, file="f", offset=0, num_bytes=16, checksums=())
    with pytest.raises(CheckpointError, match="outside"):
        reader._place(whole, np.ones(4, np.float32), outside)


def test_the_step_is_found_as_the_program_finds_it(copy):
    assert halfstep.load_checkpoint(copy / "step_00000003").iteration == 3
    (copy / "latest").write_text("step_00000003\n")
    assert halfstep.load_checkpoint(copy).iteration == 3
    (copy / "step_00000003" / "manifest.json").unlink()
    assert halfstep.load_checkpoint(copy).iteration == 6
    (copy / "step_00000006").rename(copy / "step_00000006.replaced")
    assert halfstep.load_checkpoint(copy).iteration == 6
    shard = next((copy / "step_00000006.replaced").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="no complete checkpoint.*expected"):
        halfstep.load_checkpoint(copy)
    with pytest.raises(CheckpointError, match="no folder"):
        halfstep.load_checkpoint(copy / "nowhere")


def test_damage_is_found_where_there_are_checksums_and_said_where_not(copy, monkeypatch):
    entry = halfstep.load_checkpoint(copy)["lm_head.weight" if "lm_head.weight" in halfstep.load_checkpoint(copy)
                                           else "model.embed_tokens.weight"].tensor("exp_avg")
    part = entry.slices[-1]
    shard = copy / "step_00000006" / part.file
    data = bytearray(shard.read_bytes())
    data[part.offset] ^= 1
    shard.write_bytes(data)
    opened = halfstep.load_checkpoint(copy)
    for read in (opened[entry.name].tensor("exp_avg").numpy, opened.verify):
        with pytest.raises(CheckpointError, match=f"{part.file}.*exp_avg/{entry.name}.*checksum"):
            read()
    monkeypatch.setattr(reader, "xxhash", None)
    opened = halfstep.load_checkpoint(copy)
    assert not opened.verifies
    opened[entry.name].tensor("exp_avg").numpy()
    with pytest.raises(ImportError, match="pip install xxhash"):
        opened.verify()


def test_an_edited_manifest_is_refused(copy):
    manifest = copy / "step_00000006" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"iteration": 6', '"iteration": 7'))
    with pytest.raises(CheckpointError, match="its own checksum"):
        halfstep.load_checkpoint(copy / "step_00000006")
    assert halfstep.load_checkpoint(copy).iteration == 3


def test_a_newer_format_is_named_and_not_skipped(copy):
    manifest = copy / "step_00000006" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 7'))
    for path in (copy, copy / "step_00000006"):
        with pytest.raises(NewerFormatError, match="checkpoint format 7.*reads up to 1"):
            halfstep.load_checkpoint(path)


def test_what_is_not_there_is_named(run):
    parameter = halfstep.load_checkpoint(run)["model.norm.weight"]
    with pytest.raises(KeyError, match="model.norm.weight: no master; there are: weight, exp_avg"):
        parameter.tensor("master")


def test_the_stored_checkpoint_of_version_1_reads_as_ever():
    opened = halfstep.load_checkpoint(STORED_V1)
    expected = json.loads((STORED_V1 / "listing.json").read_text())
    found = {f"{kind}/{name}": tensor for name, p in opened.items() for kind, tensor in p.tensors.items()}
    assert found.keys() == expected.keys()
    for key, tensor in found.items():
        about = expected[key]
        assert (tensor.dtype, list(tensor.shape)) == (about["dtype"], about["shape"])
        assert hashlib.sha256(tensor.numpy().tobytes()).hexdigest() == about["sha256"], key
    assert opened.iteration == 6 and len(opened.manifest["shards"]) == 3
    opened.verify()


if __name__ == "__main__":
    print(json.dumps(listing(pathlib.Path(sys.argv[1])), indent=1))
