"""Ranks as processes: every operation to the byte, and the ways in which a rank can go.

Exit codes and messages are those of docs/interface.md §2.4. Times are bounds that the interface
promises, scaled with the watchdog's, not measurements.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from processes import QUICK, Ranks, clean_environment, first_line, free_port, probe_command

LIMIT_S = 60  # far beyond the watchdog's figures, so that a busy machine fails no test


def expect_done(ends):
    assert {rank: (code, out) for rank, (code, out, _) in ends.items()} == {
        rank: (0, f"rank {rank} of {len(ends)} done\n") for rank in ends}, ends


@pytest.mark.parametrize("size", [1, 2, 4, pytest.param(3, marks=pytest.mark.slow)])
def test_every_operation(size):
    with Ranks(size, "check", **QUICK) as ranks:
        expect_done(ranks.ends(LIMIT_S))


def test_without_a_launcher():
    done = subprocess.run(probe_command("check"), env=clean_environment(), capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1 done\n"), done.stderr


def torchrun(arguments, *options):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc_per_node", "3",
         "--master_port", str(free_port()), *options, *arguments],
        env=clean_environment(), capture_output=True, text=True, timeout=2 * LIMIT_S)


def test_torchrun():
    done = torchrun(probe_command("check", **QUICK))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", *(f"rank {r} of 3 done" for r in range(3))]


@pytest.mark.slow
def test_torchrun_restarts():
    # The second attempt must not read the first one's keys: its failure, its heartbeats.
    done = torchrun(probe_command("loop", fail_rank=1, fail_attempt=0, run_ms=300, **QUICK),
                    "--max_restarts", "1")
    assert done.returncode == 0, done.stderr
    assert "rank 1 failed: bad token file" in done.stderr
    assert sorted(done.stdout.split("\n")) == ["", *(f"rank {r} of 3 done" for r in range(3))]


def test_a_rank_that_ends_later_is_waited_for():
    with Ranks(3, "loop", run_ms=100, late_ms=2 * QUICK["timeout_ms"], **QUICK) as ranks:
        expect_done(ranks.ends(LIMIT_S))


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_raises(failing):
    with Ranks(3, "loop", fail_rank=failing, run_ms=100_000, **QUICK) as ranks:
        ends = ranks.ends(LIMIT_S)
    for rank, (code, _, err) in ends.items():
        assert code == (3 if rank == failing else 5), ends
        said = "bad token file" if rank == failing else f"rank {failing} failed: bad token file"
        assert first_line(err) == said, err


@pytest.mark.parametrize("killed", [0, 2])
def test_a_rank_that_is_killed(killed, tmp_path):
    with Ranks(3, "loop", folder=tmp_path, run_ms=100_000, **QUICK) as ranks:
        os.kill(ranks.wait_until_running()[killed], signal.SIGKILL)
        ends = ranks.ends(LIMIT_S)
    assert ends[killed][0] == -signal.SIGKILL
    for rank in {0, 1, 2} - {killed}:
        assert ends[rank][0] == 5, ends
        said = first_line(ends[rank][2])
        assert said.startswith(f"rank {killed} failed: "), ends


def stop_for(ranks, rank, seconds):
    pid = ranks.wait_until_running()[rank]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def expect_slow_is_fine(size, stopped, seconds, folder, **times):
    with Ranks(size, "loop", folder=folder, run_ms=int(1500 * seconds), **times) as ranks:
        stop_for(ranks, stopped, seconds)
        expect_done(ranks.ends(LIMIT_S))


def expect_dead(size, stopped, seconds, timeout_s, folder, **times):
    with Ranks(size, "loop", folder=folder, run_ms=1_000_000, **times) as ranks:
        started = time.monotonic()
        stop_for(ranks, stopped, seconds)
        others = [r for r in range(size) if r != stopped]
        # They have ended while it was stopped.
        assert all(ranks.processes[r].poll() is not None for r in others)
        ends = ranks.ends(LIMIT_S)
        assert time.monotonic() - started < seconds + LIMIT_S
    for rank in others:
        assert ends[rank][0] == 5, ends
        said = first_line(ends[rank][2])
        assert said.startswith(f"no sign of life of rank {stopped} for {timeout_s} s"), ends
    code, out, err = ends[stopped]
    assert (code, out) == (5, "")
    assert re.match(rf"rank {stopped} did not run for .* s \(stopped\?\)", first_line(err)), err


@pytest.mark.parametrize("stopped", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_is_slow(stopped, tmp_path):
    expect_slow_is_fine(3, stopped, QUICK["timeout_ms"] / 1000 / 2, tmp_path, **QUICK)


@pytest.mark.parametrize("stopped", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_is_stopped(stopped, tmp_path):
    timeout_s = QUICK["timeout_ms"] // 1000
    expect_dead(3, stopped, 2 * timeout_s, timeout_s, tmp_path, **QUICK)


@pytest.mark.slow
def test_a_rank_that_is_slow_for_12_s(tmp_path):
    expect_slow_is_fine(3, 1, 12, tmp_path)


@pytest.mark.slow
def test_a_rank_that_is_stopped_for_40_s(tmp_path):
    expect_dead(3, 1, 40, 20, tmp_path)


def test_another_version_is_refused_before_anything_starts():
    with Ranks(3, "check", version_of_rank_1="2.0", **QUICK) as ranks:
        ends = ranks.ends(LIMIT_S)
    # Whoever comes first says which version is right.
    texts = [first_line(err) for _, _, err in ends.values()]
    assert sorted(code for code, _, _ in ends.values()) in ([2, 5, 5], [2, 2, 5]), ends
    assert any("rank 1 runs halfstep 2.0, another rank runs 1.0" in t or
               "runs halfstep 1.0, another rank runs 2.0" in t for t in texts), texts


def test_a_rank_that_never_comes_is_named():
    with Ranks(2, "check", started=1, distributed_timeout_ms=3000, **QUICK) as ranks:
        code, _, err = ranks.ends(LIMIT_S)[0]
    assert code == 5
    assert first_line(err) == "rank 1 has not joined", err


def test_no_one_at_the_address():
    port = str(free_port())
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = subprocess.run(probe_command("check", distributed_timeout_ms=2000),
                          env=clean_environment() | environment, capture_output=True, text=True)
    assert done.returncode == 5
    assert first_line(done.stderr).startswith(f"store at 127.0.0.1:{port}: "), done.stderr
    assert "MASTER_ADDR" in done.stderr


def test_a_variable_is_missing():
    done = subprocess.run(probe_command("check"), env=clean_environment() | {"RANK": "1"},
                          capture_output=True, text=True)
    assert done.returncode == 2
    assert first_line(done.stderr) == "RANK is set but WORLD_SIZE is not"
