"""Starts ranks as processes, by a launcher of four variables, and reads what became of them."""

import os
import pathlib
import socket
import subprocess
import time

PROBE = os.environ["COMM_PROBE"]
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "SLURM_", "OMPI_",
                      "PMI_", "MPI_")

# A fraction of the real times, so that a test takes seconds. interval < grace < timeout.
QUICK = {"timeout_ms": 4000, "interval_ms": 200, "grace_ms": 600}


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def probe_command(mode, **arguments):
    return [PROBE, mode] + [f"{name}={value}" for name, value in arguments.items()]


class Processes:
    """Ranks as processes, one per command, that find each other by the variables of a launcher."""

    def __init__(self, commands, *, world_size=None, address="127.0.0.1", variables={}):
        port = str(free_port())
        self.processes = [
            subprocess.Popen(command, env=clean_environment() | {
                "RANK": str(rank), "WORLD_SIZE": str(world_size or len(commands)), "MASTER_ADDR": address,
                "MASTER_PORT": port} | variables,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank, command in enumerate(commands)]

    def end_of(self, rank, limit_s):
        """Waits for a rank and returns (exit code, stdout, stderr)."""
        process = self.processes[rank]
        out, err = process.communicate(timeout=limit_s)
        return process.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


class Ranks(Processes):
    """`size` ranks of comm_probe. `prefix(rank)`: a command to run each in, such as `ip netns exec`."""

    def __init__(self, size, mode, *, address="127.0.0.1", variables={}, prefix=lambda rank: [],
                 started=None, folder=None, **arguments):
        self.folder = pathlib.Path(folder) if folder else None
        if folder:
            arguments["folder"] = folder
        super().__init__([prefix(rank) + probe_command(mode, **arguments)
                          for rank in range(size if started is None else started)],
                         world_size=size, address=address, variables=variables)

    def wait_until_running(self, limit_s=60):
        """Returns when every rank has communicated; gives the process ids of the probes."""
        deadline = time.monotonic() + limit_s
        paths = [self.folder / f"rank_{r}" for r in range(len(self.processes))]
        while not all(p.exists() and p.read_text().endswith("\n") for p in paths):
            assert time.monotonic() < deadline, "the ranks do not come up"
            for process in self.processes:
                assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        return [int(p.read_text()) for p in paths]

    def ends(self, limit_s, ranks=None):
        """Waits for `ranks` (all) and returns {rank: (exit code, stdout, stderr)}."""
        deadline = time.monotonic() + limit_s
        return {rank: self.end_of(rank, max(deadline - time.monotonic(), 0.01))
                for rank in (range(len(self.processes)) if ranks is None else ranks)}


def first_line(text):
    """What halfstep itself said: c10d adds lines of its own."""
    lines = [line for line in text.splitlines() if line.startswith("halfstep: ")]
    return lines[0].removeprefix("halfstep: ") if lines else text
