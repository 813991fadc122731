"""Two hosts as network namespaces joined by a veth pair: a delay of 20 ms, then a cut link.

Needs root, iproute2 and a kernel that lets us; where namespaces cannot be made the test passes with
a line that says so, and nothing was tested.
"""

import os
import subprocess
import time

import pytest
import test_training
from processes import QUICK, Ranks, first_line
from test_training import MODEL, O2, OVERLAP, events, text  # noqa: F401 (a fixture)

HOSTS = [f"halfstep{os.getpid()}a", f"halfstep{os.getpid()}b"]
ADDRESSES = ["10.213.77.1", "10.213.77.2"]


def ip(*arguments, host=None):
    command = ["ip", *(["-n", host] if host else []), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.fixture
def hosts():
    """The names of two namespaces that reach each other, or None with the reason printed."""
    try:
        for host in HOSTS:
            ip("netns", "add", host)
            ip("link", "set", "lo", "up", host=host)
        ip("link", "add", "wire", "netns", HOSTS[0], "type", "veth",
           "peer", "name", "wire", "netns", HOSTS[1])
        for host, address in zip(HOSTS, ADDRESSES):
            ip("addr", "add", f"{address}/24", "dev", "wire", host=host)
            ip("link", "set", "wire", "up", host=host)
        yield HOSTS
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        print(f"NOT TESTED: no network namespaces on this machine: {reason}")
        yield None
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)


def delay(host, milliseconds):
    done = subprocess.run(["tc", "-n", host, "qdisc", "add", "dev", "wire", "root", "netem", "delay",
                           f"{milliseconds}ms"], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"without a delay: this machine has no netem: {done.stderr}")


def on_two_hosts(mode, **arguments):
    return Ranks(2, mode, address=ADDRESSES[0],
                 prefix=lambda rank: ["ip", "netns", "exec", HOSTS[rank]],
                 variables={"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, **arguments)


def test_every_operation_over_a_slow_link(hosts):
    if hosts is None:
        return
    for host in hosts:
        delay(host, 20)
    with on_two_hosts("check", **QUICK) as ranks:
        ends = ranks.ends(120)
    assert [ends[r][0] for r in (0, 1)] == [0, 0], ends


def test_a_cut_link_ends_both(hosts, tmp_path):
    if hosts is None:
        return
    with on_two_hosts("loop", folder=tmp_path, run_ms=1_000_000, **QUICK) as ranks:
        ranks.wait_until_running()
        ip("link", "set", "wire", "down", host=hosts[0])
        cut = time.monotonic()
        ends = ranks.ends(60)
        took = time.monotonic() - cut
    # The interface promises 30 s at a timeout of 20 s: half as much again.
    assert took < 1.5 * QUICK["timeout_ms"] / 1000 + 5, took
    for rank, (code, _, err) in ends.items():
        assert code == 5, ends
        assert first_line(err).startswith(f"no sign of life of rank {1 - rank} for 4 s"), err


def test_training_over_a_slow_link_and_then_a_cut_one(hosts, text, tmp_path):  # noqa: F811
    if hosts is None:
        return
    for host in hosts:
        delay(host, 20)
    with test_training.Ranks(2, *MODEL, *O2, *OVERLAP, "--data", text, "--train-iters", 1_000_000, "--save", tmp_path,
                             "--heartbeat-timeout", 4, address=ADDRESSES[0],
                             prefix=lambda rank: ["ip", "netns", "exec", HOSTS[rank]]) as ranks:
        test_training.wait_for_steps(tmp_path, 3)
        ip("link", "set", "wire", "down", host=hosts[0])
        cut = time.monotonic()
        ends = ranks.ends()
        assert time.monotonic() - cut < 30
    for rank, (code, _, said) in enumerate(ends):
        assert code == 5 and said.startswith(f"no sign of life of rank {1 - rank} for 4 s"), ends
    assert not events(tmp_path, "save")
