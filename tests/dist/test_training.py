"""Whole training runs on several processes, through the program and its files."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from checkpoint import read_checkpoint
from processes import Processes, clean_environment, first_line, free_port

HALFSTEP = os.environ["HALFSTEP_BINARY"]
LIMIT_S = 120
ALIGNMENT = 128  # elements

MODEL = """--num-layers 2 --hidden-size 32 --ffn-hidden-size 72 --num-attention-heads 2 --qk-layernorm
  --seq-length 16 --micro-batch-size 1 --lr 1e-2 --matmul-precision fp32 --num-threads 1 --tokenizer byte
  --split 90,10,0 --log-interval 1 --eval-iters 0""".split()
O2 = "--bf16 --o2-optimizer --o2-gradient --no-gradient-accumulation-fusion --reuse-fp32-param".split()
OVERLAP = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather".split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"the {i * 7 % 11} dogs saw {i * i % 13} cats\n" for i in range(300)))
    return path


def torchrun(size, *flags):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc_per_node", str(size),
         "--master_port", str(free_port()), HALFSTEP, "train", *map(str, flags)],
        env=clean_environment() | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=2 * LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Ranks(Processes):
    """Ranks of `halfstep train` without a launcher. `of_rank(r)`: flags of one of them; `prefix(r)`: a command to
    run it in."""

    def __init__(self, size, *flags, of_rank=lambda rank: [], world_size=None, address="127.0.0.1",
                 prefix=lambda rank: []):
        super().__init__([[*prefix(rank), HALFSTEP, "train", *map(str, flags), *map(str, of_rank(rank))]
                          for rank in range(size)],
                         world_size=world_size, address=address, variables={"OMP_NUM_THREADS": "1"})

    def ends(self):
        """[(exit code, stdout, what halfstep said on stderr)] by rank."""
        return [self.ends_of(rank) for rank in range(len(self.processes))]

    def ends_of(self, rank):
        code, out, err = self.end_of(rank, LIMIT_S)
        return code, out, first_line(err)


def train(size, *flags):
    """Rank 0's output of a run that ends well."""
    with Ranks(size, *flags) as ranks:
        ends = ranks.ends()
    assert all(code == 0 for code, _, _ in ends), ends
    return ends[0][1]


def events(folder, kind):
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == kind]


def losses(folder):
    return [record["loss"] for record in events(folder, "step")]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_memory_law_and_wire(size, text, tmp_path):
    torchrun(size, *MODEL, *O2, *OVERLAP, "--data", text, "--global-batch-size", 12, "--train-iters", 3,
             "--log-dir", tmp_path)
    (memory,) = events(tmp_path, "memory")
    padded = memory["elements"]
    bytes_of = {c["class"]: c["measured_bytes"] for c in memory["classes"]}
    assert bytes_of == {"weights": 2 * padded, "gradients": 2 * padded, "master": 2 * padded // size,
                        "exp_avg": 2 * padded // size, "exp_avg_sq": 2 * padded // size}
    # Padding: up to 127 elements behind each of 26 parameters, and one bucket to equal aligned shards.
    assert memory["elements"] - memory["parameters"] < 26 * ALIGNMENT + size * ALIGNMENT
    assert memory["scratch_bytes"] == 2 * padded  # the one bucket's receive buffer
    for step in events(tmp_path, "step"):
        assert step["reduce_bytes"] == step["gather_bytes"] == (size - 1) / size * padded * 2


def test_the_loss_is_the_same_on_any_number_of_ranks(text, tmp_path):
    """FP32 gradients: what differs is the order of FP32 sums of 12 micro-batches, 12 · 2^-24 of the
    gradient; through ten steps of AdamW at this rate it has stayed below 1e-5 of the loss."""
    runs = {}
    for size in (1, 2, 3, 4):
        train(size, *MODEL, "--bf16", "--data", text, "--global-batch-size", 12, "--train-iters", 10,
                 "--log-dir", tmp_path / str(size))
        runs[size] = losses(tmp_path / str(size))
    assert runs[1][-1] < 0.9 * runs[1][0]
    for size, series in runs.items():
        assert series == pytest.approx(runs[1], rel=1e-4), size


def test_overlap_and_buckets_change_no_bit(text, tmp_path):
    saved = {}
    for bucket in ("4KiB", "64KiB", "1GiB"):
        for overlap in ([], OVERLAP):
            folder = tmp_path / f"{bucket}{len(overlap)}"
            train(2, *MODEL, *O2, *overlap, "--ddp-bucket-size", bucket, "--data", text,
                     "--global-batch-size", 4, "--train-iters", 20, "--save", folder)
            saved[folder.name] = read_checkpoint(folder)
    first = next(iter(saved.values()))
    assert {kind for kind, _ in first} == {"weight", "remainder", "exp_avg", "exp_avg_sq"}
    for name, checkpoint in saved.items():
        assert checkpoint == first, name


def test_a_run_goes_on_with_another_number_of_ranks(text, tmp_path):
    run = [*MODEL, *O2, "--lr-decay-style", "constant", "--data", text, "--global-batch-size", 12]
    flags = [*run, "--save", tmp_path, "--load", tmp_path]
    train(3, *flags, "--train-iters", 5)
    before = read_checkpoint(tmp_path)
    train(2, *flags, "--train-iters", 6)
    train(1, *flags, "--train-iters", 7)
    train(4, *flags, "--train-iters", 8)
    assert before.keys() == read_checkpoint(tmp_path).keys()
    whole = tmp_path / "whole"
    train(1, *run, "--train-iters", 8, "--log-dir", whole)
    # BF16 accumulation is cut differently, so losses agree as far as its rounding lets them.
    assert losses(tmp_path) == pytest.approx(losses(whole), rel=5e-3)


def test_the_stream_of_samples_is_one_for_any_resumes_and_ranks(text, tmp_path):
    """97 samples, 8 a step: the 13th step ends in the second epoch, and its checkpoint lies there."""
    short = tmp_path / "short.txt"
    short.write_bytes(text.read_bytes()[:97 * 16])  # and the end marker is a target
    run = [*MODEL, "--split", "1,0,0", "--data", short, "--global-batch-size", 8, "--lr-decay-style", "constant",
           "--log-samples"]
    train(1, *run, "--train-iters", 26, "--log-dir", tmp_path / "whole")
    for size, steps in ((1, 5), (2, 13), (4, 26)):
        train(size, *run, "--train-iters", steps, "--save", tmp_path / "cut", "--load", tmp_path / "cut")
    whole, cut = ([id for record in events(tmp_path / name, "samples") for id in record["ids"]]
                  for name in ("whole", "cut"))
    assert cut == whole and len(whole) == 26 * 8
    first, second = whole[:97], whole[97:194]
    assert sorted(first) == sorted(second) == list(range(97)) and first != second


def test_a_rank_with_bad_data_ends_all(text, tmp_path):
    missing = tmp_path / "missing.txt"
    with Ranks(3, *MODEL, "--train-iters", 5, of_rank=lambda r: ["--data", missing if r == 1 else text]) as ranks:
        ends = ranks.ends()
    assert [code for code, _, _ in ends] == [5, 3, 5], ends
    assert "missing.txt" in ends[1][2]
    for rank in (0, 2):
        assert ends[rank][2].startswith("rank 1 failed: ") and "missing.txt" in ends[rank][2], ends


def test_all_ranks_diverge_together(text, tmp_path):
    with Ranks(2, *MODEL, "--data", text, "--train-iters", 50, "--lr", "1e18", "--clip-grad", 0,
               "--max-skipped-steps", 3) as ranks:
        ends = ranks.ends()
    assert [code for code, _, _ in ends] == [6, 6], ends


@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_rank_stops_all_after_the_same_step(signalled, text, tmp_path):
    with Ranks(2, *MODEL, *O2, *OVERLAP, "--data", text, "--train-iters", 1_000_000, "--save", tmp_path) as ranks:
        wait_for_steps(tmp_path, 3)
        ranks.processes[signalled].send_signal(signal.SIGTERM)
        ends = ranks.ends()
    assert [code for code, _, _ in ends] == [130, 130], ends
    (saved,) = events(tmp_path, "save")
    assert saved["step"] == events(tmp_path, "step")[-1]["step"]


def wait_for_steps(folder, count):
    deadline = time.monotonic() + LIMIT_S
    log = folder / "log.jsonl"
    while not log.exists() or len(events(folder, "step")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def killed_run(text, folder, victim, delay):
    """Kills a rank in mid-run; the others' ends, and how long they took."""
    with Ranks(3, *MODEL, *O2, *OVERLAP, "--ddp-bucket-size", "4KiB", "--data", text, "--train-iters",
               1_000_000, "--save", folder) as ranks:
        wait_for_steps(folder, 3)
        time.sleep(delay)
        ranks.processes[victim].kill()
        started = time.monotonic()
        ends = ranks.ends()
        return ends, time.monotonic() - started


def expect_killed(text, folder, victim, delay):
    ends, seconds = killed_run(text, folder, victim, delay)
    assert seconds < 30
    for rank, (code, _, said) in enumerate(ends):
        assert code == (-signal.SIGKILL if rank == victim else 5), ends
        assert rank == victim or f"rank {victim} " in said, ends
    # Nothing is saved with a rank gone.
    assert not events(folder, "save") and not (folder / "latest").exists()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_all(victim, text, tmp_path):
    expect_killed(text, tmp_path, victim, 0)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(12))
def test_a_rank_killed_at_any_moment_ends_all(attempt, text, tmp_path):
    # A step takes some 20 ms: forward, backward, reduction, gather are all hit.
    moment = random.Random(attempt)
    expect_killed(text, tmp_path, moment.randrange(3), moment.uniform(0, 0.1))


def wait_for_line(process, start):
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"no line '{start}…': {process.stderr.read()}")


def test_stopped_for_longer_than_the_heartbeat_timeout(text):
    with Ranks(2, *MODEL, "--data", text, "--train-iters", 1_000_000, "--heartbeat-timeout", 4) as ranks:
        wait_for_line(ranks.processes[0], "step 3/")
        ranks.processes[1].send_signal(signal.SIGSTOP)
        code, _, said = ranks.ends_of(0)
        ranks.processes[1].send_signal(signal.SIGCONT)
        assert (code, ranks.ends_of(1)[0]) == (5, 5)
    assert said.startswith("no sign of life of rank 1 for 4 s")


def test_a_rank_that_never_comes_ends_the_others_in_time(text):
    with Ranks(1, *MODEL, "--data", text, "--train-iters", 5, "--distributed-timeout", 3, world_size=2) as ranks:
        code, _, said = ranks.ends_of(0)
    assert code == 5 and "rank 1" in said, said


def start_report(*flags, text):
    return train(2, *MODEL, "--bf16", "--data", text, "--train-iters", 2, *flags)


# What each flag of the ranks changes: a piece of the output that is there with it only. The bits, the bytes and
# the times behind these words are in dist_test and in this file.
EFFECTS = {
    "use-distributed-optimizer": ([], "each with its shard of master and state;"),
    "overlap-grad-reduce": ([], "as soon as backward has completed it"),
    "overlap-param-gather": ([], "while the next forward runs"),
    "ddp-bucket-size": (["4KiB"], " 16 buckets of up to "),
    "grad-wire-dtype": (["bf16"], "gradients travel in bf16"),
}
TESTED_ELSEWHERE = {"check-replicas", "distributed-timeout", "heartbeat-timeout", "distributed-backend"}


def test_every_flag_of_the_ranks_is_tested():
    out = subprocess.run([HALFSTEP, "train", "--help"], capture_output=True, text=True, check=True).stdout
    section = out.split("data parallel: several processes")[1].split("\n\n")[0]
    assert {w.removeprefix("--") for w in section.split() if w.startswith("--")} >= EFFECTS.keys() | TESTED_ELSEWHERE
    named = {line.split()[0].removeprefix("--") for line in section.splitlines() if line.strip().startswith("--")}
    assert named == EFFECTS.keys() | TESTED_ELSEWHERE


def test_the_flags_of_the_ranks_have_effects(text):
    without = start_report(text=text)
    for flag, (value, piece) in EFFECTS.items():
        assert piece not in without and piece in start_report(f"--{flag}", *value, text=text), flag


def test_replicas_are_compared(text, tmp_path):
    train(2, *MODEL, "--data", text, "--train-iters", 6, "--check-replicas", 2, "--log-dir", tmp_path)
    checks = events(tmp_path, "replicas")
    assert [c["step"] for c in checks] == [2, 4, 6] and len({c["checksum"] for c in checks}) == 3


def test_the_configuration_shows_what_a_rank_holds(text):
    with Ranks(2, *MODEL, *O2, "--data", text, "--train-iters", 5, "--check-config") as ranks:
        (code, out, _), (other, nothing, _) = ranks.ends()
    assert (code, other, nothing) == (0, 0, "")
    configuration = json.loads(out)
    memory = configuration["memory"]
    assert memory["exp_avg"]["bytes"] * 2 == memory["weights"]["bytes"]
    assert configuration["static_bytes"] == sum(entry["bytes"] for entry in memory.values())
