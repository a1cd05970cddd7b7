"""Output that nobody reads for a while."""

import os
import subprocess
import sys
import threading

from ctr_trainer.launch.output import Outlet
from tests.parallel import launch

# Writes lines into a pipe that nobody reads, counts the seconds that this takes, and ends when told to.
_LINES = 3000
_WRITER = f"""
import logging, sys
from ctr_trainer.launch.output import Outlet
from ctr_trainer.system.messages import log_lines
log_lines.install()
outlet = Outlet(most_bytes=100_000)
with log_lines.written_to(outlet.of(sys.stderr)):
    for number in range({_LINES}):
        outlet.write(sys.stdout, b"line %06d%s\\n" % (number, b"." * 200))
        logging.info("log %d", number)
    open(sys.argv[1], "w").close()
    sys.stdin.readline()
    outlet.write(sys.stdout, b"last\\n")
    outlet.close()
"""


def test_a_stalled_reader_holds_nobody_up_and_counts_dropped_lines(tmp_path):
    told = tmp_path / "told"
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, told],
        env=launch.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    launch.wait_until(lambda: told.exists() or process.poll() is not None, "all lines, with nobody who reads", 60)
    assert process.poll() is None
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout))
    reader.start()
    launch.wait_until(lambda: len(lines) > 100, "the lines that were kept", 60)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(60) == 0
    reader.join(60)
    written = [line for line in lines if line.startswith("line ") or " - log " in line]
    dropped = [line.split() for line in lines if line.startswith("launch: dropped ")]
    assert lines[-1] == "last\n" and dropped
    assert len(written) + sum(int(words[2]) for words in dropped) == 2 * _LINES


def test_lines_keep_their_order_and_all_of_them_come_to_one_who_reads():
    read, write = os.pipe()
    with open(write, "w") as stream, open(read, "rb") as pipe:
        found = []
        reader = threading.Thread(target=lambda: found.extend(pipe))
        reader.start()
        outlet = Outlet()
        expected = [b"%d\n" % number for number in range(20_000)]
        for line in expected:
            outlet.write(stream, line)
        outlet.close(60)
        stream.close()
        reader.join(60)
    assert found == expected
