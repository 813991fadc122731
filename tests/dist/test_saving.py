"""Ranks that save, in the foreground and in the background, and are killed while they do."""

import collections
import json
import random
import signal
import subprocess
import time

import pytest
from checkpoint import read_checkpoint
from test_training import HALFSTEP, LIMIT_S, MODEL, O2, OVERLAP, Ranks, events, text, train, wait_for_steps  # noqa: F401

MANY = ["--global-batch-size", 3, "--train-iters", 1_000_000, "--quiet"]


def test_async_save_writes_the_same_tensors(text, tmp_path):  # noqa: F811
    flags = [*MODEL, *O2, *OVERLAP, "--data", text, "--global-batch-size", 6, "--train-iters", 7, "--save-interval", 3]
    train(3, *flags, "--save", tmp_path / "sync")
    train(3, *flags, "--save", tmp_path / "async", "--async-save")
    assert [e["step"] for e in events(tmp_path / "async", "save")] == [3, 6, 7]
    for folder in ("step_00000003", "step_00000006", "step_00000007"):
        for shard in (f"shard_0000{r}_of_00003.safetensors" for r in (1, 2, 3)):
            assert (tmp_path / "async" / folder / shard).read_bytes() == (tmp_path / "sync" / folder / shard).read_bytes()
    assert read_checkpoint(tmp_path / "async") == read_checkpoint(tmp_path / "sync")


@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_waits_for_the_save_under_way_and_saves_the_last_step(signalled, text, tmp_path):  # noqa: F811
    with Ranks(2, *MODEL, *O2, *OVERLAP, "--data", text, "--train-iters", 1_000_000, "--save", tmp_path,
               "--async-save", "--save-interval", 2) as ranks:
        wait_for_steps(tmp_path, 5)
        ranks.processes[signalled].send_signal(signal.SIGTERM)
        ends = ranks.ends()
    assert [code for code, _, _ in ends] == [130, 130], ends
    saved = [e["step"] for e in events(tmp_path, "save")]
    last = events(tmp_path, "step")[-1]["step"]
    assert saved == sorted({*range(2, last + 1, 2), last})
    assert verified(tmp_path) == last


def verified(folder):
    """The iteration of the checkpoint that a reader finds, every byte of it checked."""
    done = subprocess.run([HALFSTEP, "inspect", folder, "--verify", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["state"]["iteration"]


def latest(folder):
    path = folder / "latest"
    return int(path.read_text().removeprefix("step_")) if path.exists() else 0


def leftovers(folder):
    return {p.name for p in folder.iterdir()
            if p.suffix in (".saving", ".replaced", ".removing", ".tmp")}


class Victims:
    """Runs that save after every step, are killed, and go on from what they had saved."""

    def __init__(self, size, text, folder, seed):  # noqa: F811
        self.size, self.folder, self.random = size, folder, random.Random(seed)
        self.flags = [*MODEL, *O2, *OVERLAP, *MANY, "--data", text, "--save", folder, "--load", folder,
                      "--save-interval", 1, "--keep-last", 2]
        self.seen = collections.Counter()  # what the kills have met
        self.slowest_s = 0.0

    def kill_one(self):
        victim = self.random.randrange(self.size)
        how = self.random.choice([[], ["--async-save"]])
        before, left = latest(self.folder), leftovers(self.folder)
        with Ranks(self.size, *self.flags, *how) as ranks:
            deadline = time.monotonic() + LIMIT_S
            while latest(self.folder) <= before:  # the save after the kill before
                assert time.monotonic() < deadline
                assert all(p.poll() is None for p in ranks.processes), ranks.ends()
                time.sleep(0.005)
            if self.random.random() < 0.5:  # at any moment; else soon after a save has begun
                time.sleep(self.random.uniform(0, 0.3))
            else:
                while not leftovers(self.folder):
                    assert time.monotonic() < deadline
                time.sleep(self.random.uniform(0, 0.01))
            known, saving = latest(self.folder), bool(leftovers(self.folder))
            ranks.processes[victim].kill()
            killed = time.monotonic()
            ends = ranks.ends()
            self.slowest_s = max(self.slowest_s, time.monotonic() - killed)
        assert time.monotonic() - killed < 30
        assert [code for code, _, _ in ends] == [-signal.SIGKILL if r == victim else 5 for r in range(self.size)], ends
        # What the kill before had left was said and removed by the first save after it. (One in the background may be
        # complete and not yet have been reported.)
        said = ends[0][1]
        assert victim == 0 or how or all(name.removesuffix(".replaced") in said for name in left), (left, said)
        found = verified(self.folder)
        steps = [int(p.name.removeprefix("step_")) for p in self.folder.glob("step_????????")
                 if (p / "manifest.json").exists()]
        assert known <= found and found >= max(steps) - 1, (known, found, steps)
        self.seen["async" if how else "sync"] += 1
        self.seen["in the middle of a save"] += saving

    def end_well(self):
        done = latest(self.folder)
        train(self.size, *self.flags, "--train-iters", done + 2)
        assert verified(self.folder) == done + 2
        assert not leftovers(self.folder)
        for step in self.folder.glob("step_*"):
            assert {p.name for p in step.iterdir()} == {"manifest.json", *(
                f"shard_{r + 1:05}_of_{self.size:05}.safetensors" for r in range(self.size))}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow),
                                   pytest.param(200, marks=pytest.mark.nightly)])
def test_a_kill_in_the_middle_of_saving_costs_no_checkpoint(size, kills, text, tmp_path):  # noqa: F811
    victims = Victims(size, text, tmp_path, seed=1000 * size + kills)
    for _ in range(kills):
        victims.kill_one()
    victims.end_well()
    print(f"{kills} kills of a run of {size}: {dict(victims.seen)}, the last rank ended within {victims.slowest_s:.1f} s")
    assert victims.seen["in the middle of a save"] >= kills // 10
