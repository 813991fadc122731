"""The program as a process: exit codes, signals, standard output, and what one command hands to the next."""

import json
import math
import resource
import shutil
import signal
import subprocess
import time

import pytest
from program import HALFSTEP, TINY, failure, halfstep


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """A checkpoint folder, and what training printed."""
    folder = tmp_path_factory.mktemp("trained")
    done = halfstep("train", *TINY, "--train-iters", 40, "--data", text, "--save", folder, "--eval-iters", 4)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_training_shows_what_the_interface_promises(trained):
    folder, out = trained
    for piece in ("bytes per parameter", "no decay", "step 40/40 | loss ", " tok/s | ", " (opt ", "| clip ",
                  "| lost w ", "eval at step 40", "bits per byte", "peak by phase", "checkpoint  "):
        assert piece in out, piece
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["start", "memory", *["step"] * 4, "eval", "save", "end"]
    assert (folder / "latest").read_text().strip() == "step_00000040"


def test_eval_repeats_what_training_measured(trained, text):
    folder, out = trained
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    done = halfstep("eval", "--load", folder, "--data", text, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] == 16 * result["sequences"]
    assert 0 < result["loss"] < events[2]["loss"]  # all of the text, after training
    human = halfstep("eval", "--load", folder, "--data", text)
    assert f"loss {result['loss']:.4f}" in human.stdout
    assert f"{result['loss'] / math.log(2):.4f} bits per byte" in human.stdout
    # The text is one document: nothing to reset, and no target that follows an end marker.
    packed = halfstep("eval", "--load", folder, "--data", text, "--json", "--reset-position-ids",
                      "--reset-attention-mask", "--eod-mask-loss")
    assert json.loads(packed.stdout) == result
    two = ["eval", "--load", folder, "--data", text, text, "--json"]
    masked = json.loads(halfstep(*two, "--eod-mask-loss").stdout)
    assert masked["tokens"] == json.loads(halfstep(*two).stdout)["tokens"] - 1
    # The count can be cut, and a cut is the beginning.
    one = json.loads(halfstep("eval", "--load", folder, "--data", text, "--max-sequences", 1, "--json").stdout)
    assert one["sequences"] == 1


def test_generate_continues_a_prompt(trained):
    folder, _ = trained
    greedy = [halfstep("generate", "--load", folder, "--prompt", "the ", "--max-new-tokens", 20) for _ in range(2)]
    assert greedy[0].returncode == 0, greedy[0].stderr
    assert greedy[0].stdout.startswith("the ") and greedy[0].stdout == greedy[1].stdout
    sampled = [halfstep("generate", "--load", folder, "--prompt", "the ", "--max-new-tokens", 20, "--temperature", 5,
                        "--seed", seed).stdout for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.parametrize("args, code, what, hint", [
    (["--o2-optimiser"], 2, "unknown flag --o2-optimiser", "did you mean --o2-optimizer?"),
    (["--o2-optimizer"], 2, "--o2-optimizer", "add --bf16"),
    (["--o2-gradient", "--bf16"], 2, "--o2-gradient", "add --no-gradient-accumulation-fusion"),
    (["--hidden-dropout", "0.1"], 2, "--hidden-dropout 0.1", "give 0"),
    (["--tensor-model-parallel-size", "2"], 2, "--tensor-model-parallel-size 2", "ranks are data-parallel"),
    (["--data", "/nowhere/text"], 3, "/nowhere/text", ""),
    (["--load", "/nowhere"], 3, "/nowhere", ""),
    (["--config", "/nowhere.json"], 2, "/nowhere.json", ""),
    (["--lr", "1e30", "--max-skipped-steps", "2", "--data", "TEXT"], 6, "2 steps in a row", "lower --lr"),
    (["--hidden-size", "4TiB", "--data", "TEXT"], 2, "--hidden-size: got 4TiB", "--help"),
    (["--num-threads", "1e10", "--data", "TEXT"], 2, "--num-threads: got 1e10", "--help"),
    (["--data", b"\xff"], 2, "--data: ", "rename"),
    # Weights and state of 26 TB.
    (["--ffn-hidden-size", "512MiB", "--hidden-size", "1KiB", "--data", "TEXT"], 4, "out of memory", ""),
])
def test_exit_codes(text, args, code, what, hint):
    args = [str(text) if a == "TEXT" else a for a in args]
    data = [] if "--data" in args else ["--data", text]
    first, second = failure(halfstep("train", *TINY, "--train-iters", 20, *data, *args), code)
    assert what in first and hint in second


def test_a_batch_that_does_not_fit_is_out_of_memory(text):
    # The model fits into 4 GiB of address space, its activations for 3.2 million tokens do not.
    done = halfstep("train", *TINY, "--train-iters", 2, "--data", text, "--micro-batch-size", 200_000,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)))
    assert "--micro-batch-size" in failure(done, 4)[1]


def test_half_of_a_launchers_variables_is_refused(text):
    for given, missing in ("WORLD_SIZE", "RANK"), ("RANK", "WORLD_SIZE"):
        done = halfstep("train", *TINY, "--train-iters", 2, "--data", text, env={given: "1"})
        assert f"{given} is set but {missing} is not" in failure(done, 2)[0]


def test_other_commands_suggest_too(trained):
    assert "did you mean --json?" in failure(halfstep("eval", "--load", trained[0], "--jsno"), 2)[1]


def test_what_has_no_meaning_is_listed_once_at_start(text):
    done = halfstep("train", *TINY, "--train-iters", 1, "--data", text, "--use-flash-attn", "--swiglu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("accepted, nothing to do: --use-flash-attn (")
    assert "--swiglu (" in done.stdout.splitlines()[0]


def test_check_config_prints_a_config_file(text, tmp_path):
    config = halfstep("train", *TINY, "--train-iters", 3, "--data", text, "--bf16", "--o2-optimizer", "--check-config")
    assert config.returncode == 0, config.stderr
    document = json.loads(config.stdout)
    assert document["memory"]["exp_avg_sq"]["dtype"] == "bf16"
    (tmp_path / "config.json").write_text(json.dumps(document["settings"] | {"check-config": False}))
    done = halfstep("train", "--config", tmp_path / "config.json")
    assert done.returncode == 0, done.stderr
    assert "step 3/3" in done.stdout or "finished after step 3" in done.stdout


def test_data_can_be_a_list_of_files(text, tmp_path):
    (tmp_path / "list.txt").write_text(f"{text}\n{text}\n")
    done = halfstep("train", *TINY, "--train-iters", 1, "--data", f"@{tmp_path / 'list.txt'}")
    assert done.returncode == 0, done.stderr


def test_no_progress_bar_in_a_pipe(trained):
    assert "\r" not in trained[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_resumed_run_is_the_same(text, tmp_path, number):
    flags = [*TINY, "--train-iters", "60", "--data", str(text), "--bf16", "--o2-optimizer", "--log-interval", "1"]
    process = subprocess.Popen([HALFSTEP, "train", *flags, "--train-iters", "1000000", "--lr-decay-iters", "60",
                                "--save", str(tmp_path / "a")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("step 5/"):
            process.send_signal(number)
            break
    process.stdout.read()
    assert process.wait(timeout=60) == 130
    error = process.stderr.read()
    assert f"stopped by {number.name} after step" in error and "saved in" in error
    step = int((tmp_path / "a" / "latest").read_text().strip().removeprefix("step_"))
    end = str(step + 10)
    resumed = halfstep("train", *flags, "--lr-decay-iters", "60", "--train-iters", end, "--load", tmp_path / "a", "--save", tmp_path / "b")
    assert resumed.returncode == 0, resumed.stderr
    whole = halfstep("train", *flags, "--lr-decay-iters", "60", "--train-iters", end, "--save", tmp_path / "c")
    assert whole.returncode == 0, whole.stderr
    shards = [sorted((tmp_path / run / f"step_{step + 10:08}").glob("*.safetensors")) for run in "bc"]
    assert [p.read_bytes() for p in shards[0]] == [p.read_bytes() for p in shards[1]] != []


def test_a_second_signal_ends_at_once(text, tmp_path):
    # One step takes so long that the first signal is still waiting for its end.
    big = [*TINY, "--hidden-size", "256", "--ffn-hidden-size", "1024", "--num-layers", "8", "--micro-batch-size", "64",
           "--global-batch-size", "6400", "--train-iters", "2", "--data", str(text)]
    process = subprocess.Popen([HALFSTEP, "train", *big], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("no decay"):  # the last line before the first step
            break
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == -signal.SIGTERM


def test_a_failed_save_is_said_and_the_run_goes_on_until_one_succeeds(text, tmp_path):
    # No file may grow beyond 64 KiB: a shard of the tiny model (some 80 KB) does not fit, the log does.
    small = (64 << 10, resource.RLIM_INFINITY)
    process = subprocess.Popen(
        [HALFSTEP, "train", *TINY, "--train-iters", "1000000", "--data", str(text), "--save", str(tmp_path / "a"),
         "--save-interval", "50", "--log-interval", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, small))
    failed = saved = 0
    for line in process.stdout:
        if "was not saved" in line and not failed:
            assert line.startswith("warning: step 50 was not saved: cannot write ")
            assert "File too large" in line and "free some space" in line
            assert not list((tmp_path / "a").glob("step_*")), "what a failed save wrote is still there"
            failed = 50
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        elif line.startswith("saved ") and not saved:
            saved = int(line.split("step_")[1].split()[0])
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    assert failed and saved > failed and saved % 50 == 0
    events = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    kinds = [e["event"] for e in events if e["event"].startswith("save")]
    assert kinds[0] == "save_failed" and kinds[-1] == "save"


def test_a_last_save_that_fails_is_an_error_that_names_the_cause(text, tmp_path):
    done = halfstep("train", *TINY, "--train-iters", 5, "--data", text, "--save", tmp_path / "a",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10)))
    first, second = failure(done, 3)
    assert "cannot write" in first and "step_00000005" in first and "File too large" in first
    assert "free some space" in second


def test_training_goes_on_when_its_output_cannot_be_written(text, tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run([HALFSTEP, "train", *TINY, "--train-iters", "200", "--log-interval", "1", "--data", str(text),
                               "--save", str(tmp_path)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "latest").read_text().strip() == "step_00000200"


# inspect


def test_inspect_lists_a_checkpoint_and_reads_its_data_only_to_verify(trained, tmp_path):
    folder, _ = trained
    document = json.loads(halfstep("inspect", folder, "--json").stdout)
    assert document["type"] == "checkpoint" and document["path"] == f"{folder}/step_00000040"
    assert document["state"]["iteration"] == 40 and document["state"]["t"]["default"] == 40
    tensors = {t["name"]: t for t in document["tensors"]}
    assert {name.split("/")[0] for name in tensors} == {"weight", "exp_avg", "exp_avg_sq"}
    embedding = tensors["weight/model.embed_tokens.weight"]
    assert embedding["shape"] == [257, 16] and embedding["dtype"] == "fp32" and embedding["bytes"] == 4 * 257 * 16
    assert document["bytes"] == sum(t["bytes"] for t in document["tensors"])
    human = halfstep("inspect", folder)
    assert "iteration 40, t 40" in human.stdout and "weight/model.embed_tokens.weight" in human.stdout
    summary = next(line for line in human.stdout.splitlines() if line.startswith("exp_avg_sq "))
    of_kind = [t for name, t in tensors.items() if name.startswith("exp_avg_sq/")]
    assert summary.split()[1:5] == ["fp32", str(len(of_kind)), "tensors", str(sum(t["elements"] for t in of_kind))]
    assert "every checksum matches" not in human.stdout
    assert "every checksum matches" in halfstep("inspect", folder, "--verify").stdout

    copy = tmp_path / "step_00000040"
    shutil.copytree(folder / "step_00000040", copy)
    shard = copy / embedding["file"]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert halfstep("inspect", copy).returncode == 0
    first, _ = failure(halfstep("inspect", copy, "--verify"), 3)
    assert embedding["file"] in first


def test_inspect_lists_safetensors_token_pairs_and_refuses_the_rest(trained, text, tmp_path):
    folder, _ = trained
    shard = next((folder / "step_00000040").glob("*.safetensors"))
    document = json.loads(halfstep("inspect", shard, "--json").stdout)
    assert document["type"] == "safetensors" and document["bytes"] == sum(t["bytes"] for t in document["tensors"])
    shutil.copy(shard, tmp_path / "model.safetensors")
    of_folder = json.loads(halfstep("inspect", tmp_path, "--json").stdout)
    assert [t["name"] for t in of_folder["tensors"]] == [t["name"] for t in document["tensors"]]
    assert "weight/model.embed_tokens.weight" in halfstep("inspect", tmp_path).stdout

    assert halfstep("data", "build", "--input", text, "--output-prefix", tmp_path / "t").returncode == 0
    for path in (tmp_path / "t", tmp_path / "t.bin", tmp_path / "t.idx"):
        pair = json.loads(halfstep("inspect", path, "--json").stdout)
        assert (pair["type"], pair["documents"], pair["tokens"]) == ("tokens", 1, len(text.read_bytes()) + 1)
    assert "1 documents" in halfstep("inspect", tmp_path / "t").stdout
    assert "halfstep data verify" in failure(halfstep("inspect", tmp_path / "t", "--verify"), 2)[1]

    (tmp_path / "empty").mkdir()
    assert "no safetensors file" in failure(halfstep("inspect", text), 3)[0]
    assert "no .safetensors files" in failure(halfstep("inspect", tmp_path / "empty"), 3)[0]
    assert "/nowhere" in failure(halfstep("inspect", "/nowhere"), 3)[0]
