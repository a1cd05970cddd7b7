"""A comparison on a processor that lacks instructions which one of its sides needs."""

import json
import pathlib
import subprocess
import sys

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import scaling, sides
from ctr_trainer.processes import hardware
every = {name: scaling.sides(steps=2)[name] for name in ("one", "one_bf16")}
rates = sides.compare(sides.runnable(every, hardware.has_bfloat16(sys.argv[2])), rounds=1)
print(json.dumps([list(rates), sides.ratio(rates, "one", "one"), sides.ratio(rates, "one_bf16", "one")]))
"""


def test_a_side_that_the_processor_cannot_run_is_left_out_by_name_and_its_ratio_is_null(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n")
    command = [sys.executable, "-c", PROGRAM, str(BENCHMARKS), str(cpuinfo)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    first, *_, last = ran.stdout.splitlines()
    assert first.startswith("left out: one_bf16, since this processor has no instructions for bfloat16")
    assert json.loads(last) == [["one"], 1.0, None]


def test_the_sides_that_need_bfloat16_are_those_that_ask_for_it():
    program = "import sys; sys.path.insert(0, sys.argv[1]); import scaling; " + (
        "print([name for name, side in scaling.sides(2).items() "
        "if side.needs_bfloat16 != ('--mixed_precision=bfloat16' in side.arguments)])"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(BENCHMARKS)], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "[]\n", ran.stderr
