"""The program as a process: exit codes, signals, standard output, and what one command hands to the next."""

import json
import math
import os
import resource
import signal
import subprocess
import time

import pytest

HALFSTEP = os.environ["HALFSTEP_BINARY"]

TINY = """--num-layers 1 --hidden-size 16 --ffn-hidden-size 32 --num-attention-heads 2 --seq-length 16
  --micro-batch-size 2 --lr 1e-2 --matmul-precision fp32 --num-threads 1 --tokenizer byte
  --split 90,10,0 --eval-iters 0""".split()


def halfstep(*args, **more):
    environment = os.environ | more.pop("env", {})
    # A byte model may write bytes that are no UTF-8.
    return subprocess.run([HALFSTEP, *(a if isinstance(a, bytes) else str(a) for a in args)], capture_output=True, text=True, errors="replace",
                          env=environment, **more)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"the {i * 7 % 11} dogs saw {i * i % 13} cats\n" for i in range(300)))
    return path


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """A checkpoint folder, and what training printed."""
    folder = tmp_path_factory.mktemp("trained")
    done = halfstep("train", *TINY, "--train-iters", 40, "--data", text, "--save", folder, "--eval-iters", 4)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def failure(done, code):
    """The two lines of an error: what happened, what to do."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[0].startswith("halfstep: ") and lines[1].startswith("  "), done.stderr
    return lines


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
    (["--tensor-model-parallel-size", "2"], 2, "--tensor-model-parallel-size 2", "one process"),
    (["--data", "/nowhere/text"], 3, "/nowhere/text", ""),
    (["--load", "/nowhere"], 3, "/nowhere", ""),
    (["--config", "/nowhere.json"], 3, "/nowhere.json", ""),
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


def test_several_processes_are_refused(text):
    done = halfstep("train", *TINY, "--train-iters", 2, "--data", text, env={"WORLD_SIZE": "2"})
    assert "WORLD_SIZE is 2" in failure(done, 2)[0]


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
