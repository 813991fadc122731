"""What surrounds a run and must not break it or be broken by it: other runs, standard streams, signals, leftovers."""

import json
import os
import signal
import subprocess

import pytest
from program import HALFSTEP, TINY, failure, halfstep

MANY = ["--train-iters", "1000000", "--log-interval", "1"]


def start(*args, **more):
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
    return subprocess.Popen([HALFSTEP, *map(str, args)], **more)


def wait_for_line(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"no line '{beginning}': {process.stderr.read()}")


def end(process, number):
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def shards(folder):
    return {p.name: p.read_bytes() for p in folder.glob("*.safetensors")}


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert halfstep("train", *TINY, "--train-iters", 3, "--data", text, "--save", folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def broken(trained, tmp_path_factory):
    """A Hugging Face folder like the model of `trained`, all of whose weights are NaN."""
    folder = tmp_path_factory.mktemp("broken")
    manifest = json.loads((trained / "step_00000003" / "manifest.json").read_text())
    (folder / "config.json").write_text(json.dumps(manifest["model_config"]))
    header, end = {}, 0
    for tensor in json.loads(halfstep("inspect", trained, "--json").stdout)["tensors"]:
        kind, name = tensor["name"].split("/")
        if kind == "weight":
            header[name] = {"dtype": "F32", "shape": tensor["shape"], "data_offsets": [end, end := end + tensor["bytes"]]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\xff" * end)
    return folder


# Two runs, one folder.


def test_a_second_run_in_the_same_folder_is_refused_and_does_the_first_no_harm(text, tmp_path):
    flags = ["train", *TINY, "--data", text, "--save", tmp_path, "--load", tmp_path]
    first = start(*flags, *MANY)
    wait_for_line(first, "step 1/")
    said, hint = failure(halfstep(*flags, "--train-iters", 5), 2)
    assert f"another run (process {first.pid} on " in said and "--save" in hint
    code, _, error = end(first, signal.SIGTERM)
    assert code == 130 and "saved in" in error
    assert halfstep("inspect", tmp_path, "--verify").returncode == 0
    # The lock went with its process.
    assert halfstep(*flags, "--train-iters", 1).returncode == 0


def test_folders_that_have_lost_their_manifests_are_not_an_empty_run(trained, text, tmp_path):
    (tmp_path / "step_00000002").mkdir()
    (tmp_path / "step_00000002" / "shard_00001_of_00001.safetensors").write_bytes(b"precious")
    for load in ([], ["--load", tmp_path]):
        said, _ = failure(halfstep("train", *TINY, "--train-iters", 2, "--data", text, "--save", tmp_path, *load), 3)
        assert "step_00000002" in said
    assert shards(tmp_path / "step_00000002") == {"shard_00001_of_00001.safetensors": b"precious"}
    assert "no complete checkpoint" in failure(halfstep("inspect", tmp_path, "--verify"), 3)[0]


# Standard streams.


@pytest.mark.parametrize("stderr", ["full", "closed"])
def test_an_error_that_cannot_be_said_keeps_its_exit_code(stderr):
    with open("/dev/full", "w") as full:
        done = subprocess.run([HALFSTEP, "train", "--nope"], stdout=subprocess.DEVNULL, stderr=full,
                              preexec_fn=(lambda: os.close(2)) if stderr == "closed" else None)
    assert done.returncode == 2


@pytest.mark.parametrize("closed", [[0, 1, 2], [1], [2]])
def test_no_file_of_a_run_becomes_a_closed_standard_stream(text, tmp_path, closed):
    done = subprocess.run([HALFSTEP, "train", *TINY, "--train-iters", "3", "--log-interval", "1", "--data", str(text),
                           "--save", str(tmp_path)], preexec_fn=lambda: [os.close(fd) for fd in closed])
    assert done.returncode == 0
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "memory", *["step"] * 3, "save", "end"]


def test_training_goes_on_when_the_reader_of_its_output_is_gone(text, tmp_path):
    process = start("train", *TINY, "--train-iters", 300, "--log-interval", 1, "--data", text, "--save", tmp_path)
    wait_for_line(process, "step 1/")
    process.stdout.close()
    assert process.wait(timeout=120) == 0, process.stderr.read()
    assert (tmp_path / "latest").read_text().strip() == "step_00000300"


@pytest.mark.parametrize("args", [["info"], ["train", "--help"], ["--help"], ["inspect", "FOLDER"],
                                  ["inspect", "FOLDER", "--json"], ["eval", "--load", "FOLDER", "--data", "TEXT", "--json"],
                                  ["train", "--load", "FOLDER", "--check-config"]])
def test_output_that_cannot_be_written_is_an_error(trained, text, args):
    args = [{"FOLDER": str(trained), "TEXT": str(text)}.get(a, a) for a in args]
    with open("/dev/full", "w") as full:
        done = subprocess.run([HALFSTEP, *args], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("halfstep: cannot write the output: No space left on device\n  "), done.stderr


# Signals.


@pytest.mark.parametrize("asked, spins", [({}, "1000"), ({"OMP_WAIT_POLICY": "active"}, "30000000000"),
                                          ({"GOMP_SPINCOUNT": "77"}, "77")])
def test_waiting_threads_sleep_soon_unless_told_to_spin(text, asked, spins):
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([HALFSTEP, "train", *TINY, "--train-iters", "1", "--data", str(text)], capture_output=True,
                          text=True, env=environment | asked | {"OMP_DISPLAY_ENV": "verbose"})
    assert done.returncode == 0, done.stderr
    # OpenMP says it each time it is loaded.
    said = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    assert f"'{spins}'" in said[-1]


def test_a_signal_before_the_first_step_ends_the_run_at_once(text, tmp_path):
    # A tokenizer that has started and never answers.
    (tmp_path / "python").write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\necho on >&2\nexec cat > /dev/null\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "tokenizer.json").write_text("{}")
    process = start("train", *TINY, "--train-iters", 2, "--data", text, "--tokenizer", tmp_path,
                    env=os.environ | {"HALFSTEP_PYTHON": str(tmp_path / "python")})
    while not (tmp_path / "started").exists():
        assert process.poll() is None, process.stderr.read()
    code, _, error = end(process, signal.SIGTERM)
    assert code == 130 and error.startswith("halfstep: stopped by SIGTERM") and len(error.splitlines()) == 2


def test_nohup_keeps_a_run_alive(text):
    process = start("train", *TINY, "--train-iters", 300, "--log-interval", 1, "--data", text,
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for_line(process, "step 5/")
    code, out, error = end(process, signal.SIGHUP)
    assert code == 0 and "step 300/300" in out, error


# What is given.


@pytest.mark.parametrize("flag", ["--save", "--load", "--load-hf", "--fp32-params", "--tokenizer", "--data", "--log-dir"])
def test_an_empty_text_is_refused_and_not_taken_for_nothing(text, flag):
    assert f"{flag}: got '', expected " in failure(
        halfstep("train", *TINY, "--train-iters", 1, "--data", text, "--bf16", flag, ""), 2)[0]


@pytest.mark.parametrize("args", [["eval", "--load", "", "--data", "x"], ["generate", "--load-hf", "", "--prompt", "x"],
                                  ["eval", "--load", "x", "--data", "x", "--tokenizer", ""], ["inspect", ""],
                                  ["data", "build", "--input", "x", "--output-prefix", ""]])
def test_other_commands_refuse_empty_texts_too(args):
    assert "got ''" in failure(halfstep(*args), 2)[0]


@pytest.mark.parametrize("args", [["--num-layers", "2147483647"], ["--num-layers", "100000000"], ["--num-threads", "4096"]])
def test_sizes_beyond_all_use_are_refused_at_once(text, args):
    assert f"{args[0]}: got {args[1]}" in failure(
        halfstep("train", *TINY, "--train-iters", 1, "--data", text, *args, timeout=60), 2)[0]


def test_flags_without_an_effect_are_refused(text):
    run = ["train", *TINY, "--train-iters", 1, "--data", text, "--split", "100,0,0"]
    assert "--eval-interval has no effect" in failure(
        halfstep(*run, "--eval-iters", 1, "--eval-interval", 1), 2)[0]
    assert "--exit-duration-in-mins: got 0" in failure(halfstep(*run, "--exit-duration-in-mins", 0), 2)[0]


def test_data_build_says_what_gives_no_tokens(text, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    done = halfstep("data", "build", "--input", tmp_path / "empty.txt", "--output-prefix", tmp_path / "t")
    assert done.returncode == 0 and "warning: no input has any text" in done.stderr
    assert "halfstep data merge" in failure(
        halfstep("data", "build", "--input", tmp_path / "t.bin", "--output-prefix", tmp_path / "u"), 2)[1]


@pytest.mark.parametrize("name", ["pipe", "pipe.jsonl"])
def test_a_pipe_is_no_input(tmp_path, name):
    os.mkfifo(tmp_path / name)
    said, _ = failure(halfstep("data", "build", "--input", tmp_path / name, "--output-prefix", tmp_path / "t",
                               timeout=60), 3)
    assert "not a regular file" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


# Weights that are not finite.


def test_a_run_that_ends_with_a_loss_that_is_not_finite_has_diverged(broken, text, tmp_path):
    size = {"--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads"}
    flags = [f for i, f in enumerate(TINY) if f not in size and TINY[i - 1] not in size]
    done = halfstep("train", *flags, "--load-hf", broken, "--train-iters", 1, "--data", text, "--save", tmp_path,
                    "--eval-iters", 1)
    said, hint = failure(done, 6)
    assert "not finite" in said and "--lr" in hint
    assert "warning: eval at step 1 | the loss is not finite" in done.stdout
    assert (tmp_path / "latest").read_text().strip() == "step_00000001"


def test_a_row_of_skipped_steps_at_the_end_is_no_success(text):
    # Its weights give a finite loss, and gradients that are not.
    done = halfstep("train", *TINY, "--train-iters", 4, "--data", text, "--lr", "1e30")
    assert "not finite" in failure(done, 6)[0] and "3 steps were skipped" in done.stdout


def test_weights_that_are_not_finite_give_no_results(broken, text):
    evaluation = ["eval", "--load-hf", broken, "--tokenizer", "byte", "--seq-length", 16, "--data", text]
    for args in (evaluation, [*evaluation, "--json"]):
        done = halfstep(*args)
        assert "not finite" in failure(done, 3)[0] and done.stdout == ""
    assert "not finite" in failure(halfstep("generate", "--load-hf", broken, "--tokenizer", "byte", "--prompt", "the"), 3)[0]


# Resuming.


def test_a_resumed_run_needs_no_other_flags(text, tmp_path):
    flags = ["train", *TINY, "--data", text, "--bf16", "--o2-optimizer", "--adam-beta2", "0.98", "--global-batch-size",
             4, "--lr-decay-iters", 12, "--seed", 7]
    assert halfstep(*flags, "--train-iters", 12, "--save", tmp_path / "whole").returncode == 0
    assert halfstep(*flags, "--train-iters", 6, "--save", tmp_path / "cut").returncode == 0
    resumed = halfstep("train", "--load", tmp_path / "cut", "--save", tmp_path / "cut", "--train-iters", 12)
    assert resumed.returncode == 0, resumed.stderr
    assert [line.split() for line in resumed.stdout.splitlines() if line.endswith(" this run's")] == [
        ["--train-iters", "6", "12", "this", "run's"]]
    assert shards(tmp_path / "cut" / "step_00000012") == shards(tmp_path / "whole" / "step_00000012") != {}
    again = halfstep("train", "--load", tmp_path / "cut", "--save", tmp_path / "cut")
    assert again.returncode == 0 and "nothing to do" in again.stdout


def test_what_is_given_to_a_resumed_run_wins_unless_it_is_another_model(trained):
    resume = ["train", "--load", trained, "--train-iters", 4]
    changed = halfstep(*resume, "--lr", "5e-3", "--init-method-std", "0.3")
    assert changed.returncode == 0, changed.stderr
    assert ["--lr", "0.01", "0.005", "this", "run's"] in [line.split() for line in changed.stdout.splitlines()]
    assert "--num-layers is 2, and 1 for the model of --load" in failure(halfstep(*resume, "--num-layers", 2), 2)[0]
    longer = failure(halfstep(*resume, "--seq-length", 32, "--allow-data-change"), 2)
    assert "longer than the 16 positions" in longer[0] and "--seq-length" in longer[1]
