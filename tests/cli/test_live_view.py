"""The live view of a process whose output is piped."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from tests.builders import JOBS


def test_on_a_terminal_the_streamed_lines_reach_a_piped_stdout_alone(tmp_path):
    (tmp_path / "programs.py").write_text((JOBS / "programs.py").read_text())
    job = "train_input: {batch_size: 8, micro_batch_size: {explore: {max: 2}}}\nexplore:\n  device: cpu\n"
    job += "  max_probes: 3\n  memory_budget: 512MiB\n  compile: {backend: aot_eager}\n"
    job += '  workload: {model: "programs:perceptron", batch: "programs:samples", loss: "programs:cross_entropy"}\n'
    (tmp_path / "job.yaml").write_text(job)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "bexplore", "explore", "job.yaml"]
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 65536):
            drawn += chunk
    except OSError:
        pass  # the other end is closed: the command has ended
    streamed = process.stdout.read().decode()
    assert process.wait(timeout=300) == 0
    assert "\x1b" not in streamed
    assert [line for line in streamed.splitlines() if line.startswith("BEXP202")] != []
    assert b"BEXP202" not in drawn
    assert b"samples/s" in drawn and b"\x1b" in drawn
