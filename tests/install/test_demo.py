"""scripts/demo.py in a copy of the checkout whose package and run.sh are small stand-ins."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

MODULES = (
    "__init__",
    "system/files/lease",
    "system/files/local_path",
    "system/messages/errors",
    "system/processes/child",
    "system/processes/hardware",
)
ROOT = pathlib.Path(__file__).resolve().parents[2]

# Writes down how it was called, and does what the demo relies on, with numbers that can be told apart.
FAKE_TRAINER = """\
import json, os, pathlib, sys

command, flags = sys.argv[1], dict(a[2:].split("=", 1) for a in sys.argv[2:])
with open("calls", "a") as file:
    print(command, *sys.argv[2:], file=file)
if pathlib.Path("fail").exists() and pathlib.Path("fail").read_text() == command:
    sys.exit(5)
if command == "convert":
    for part in ("train", "test"):
        os.makedirs(f"{flags['output']}/{part}", exist_ok=True)
        with open(f"{flags['output']}/{part}/_dataset.json", "w") as file:
            json.dump({"extra": {"oracle_auc": 0.8}}, file)
elif command == "train":
    os.makedirs("demo/model")
    with open("demo/model/train_summary.json", "w") as file:
        json.dump(dict(workers=3, steps=10, examples=2000, seconds=4.0, examples_per_sec=500.0), file)
elif command == "evaluate":
    print("a line of the log")
    print(json.dumps(dict(global_step=10, examples=100, auc=0.75, logloss=0.5, copc=1.02)))
elif command == "export":
    print(json.dumps(dict(export_dir=flags["export_dir"])))
"""


class Demo:
    def __init__(self, directory):
        self.directory = directory
        for name in ("scripts/demo.py", *(f"ctr_trainer/{module}.py" for module in MODULES)):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
        (directory / "ctr_trainer" / "__main__.py").write_text(FAKE_TRAINER)
        (directory / "configs").mkdir()
        self.flagfile = directory / "configs" / "demo.flags"
        self.flagfile.write_text("# the demo\n--model_dir=demo/model\n--train_data=demo/data/train\n")
        # The program beside horovodrun's place: demo.py looks for it with the scripts of its own Python.
        scripts = directory / "bin"
        scripts.mkdir()
        horovodrun = scripts / "horovodrun"
        horovodrun.write_text(f'#!/bin/sh\necho "horovodrun $*" >>calls\nexec {sys.executable} -m ctr_trainer train\n')
        horovodrun.chmod(0o755)

    def run(self, **variables):
        """Returns (the finished process, the calls of the commands)."""
        calls = self.directory / "calls"
        calls.write_text("")
        code = "import sys, sysconfig, runpy; get = sysconfig.get_path\n"
        code += "sysconfig.get_path = lambda name, *rest: sys.argv[1] if name == 'scripts' else get(name, *rest)\n"
        code += "runpy.run_path('scripts/demo.py', run_name='__main__')"
        done = subprocess.run(
            [sys.executable, "-c", code, str(self.directory / "bin")],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.directory), **variables},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done, calls.read_text().splitlines()


@pytest.fixture
def demo(tmp_path):
    return Demo(tmp_path)


def test_the_last_line_is_what_the_commands_reported(demo):
    done, calls = demo.run()
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert 0 < result.pop("seconds") < 120
    assert result == {
        "workers": 3,
        "steps": 10,
        "examples": 2000,
        "examples_per_sec": 500.0,
        "auc": 0.75,
        "logloss": 0.5,
        "copc": 1.02,
        "oracle_auc": 0.8,
        "model_dir": str(demo.directory / "demo" / "model"),
        "export_dir": str(demo.directory / "demo" / "export"),
    }
    assert calls == [
        "convert --format=synthetic --output=demo/data",
        "horovodrun -np 2 ./run.sh --flagfile=configs/demo.flags --eval_data=",
        "train",
        "evaluate --flagfile=configs/demo.flags",
        "export --flagfile=configs/demo.flags --export_dir=demo/export",
    ]
    assert "a line of the log" in done.stdout


def test_a_second_run_keeps_a_whole_data_set_and_trains_afresh(demo):
    demo.run()
    done, calls = demo.run()
    assert done.returncode == 0, done.stderr
    assert not [call for call in calls if call.startswith("convert")]
    assert "keeping the data set" in done.stdout and "removing demo/model, the model of an earlier run" in done.stdout
    (demo.directory / "demo" / "data" / "test" / "_dataset.json").unlink()
    done, calls = demo.run()
    assert done.returncode == 0, done.stderr
    assert calls[0].startswith("convert")


def test_a_failed_step_is_named_and_the_next_run_goes_on(demo):
    steps = {"convert": "generating the data set", "train": "training", "export": "exporting"}
    for command, what in steps.items():
        (demo.directory / "fail").write_text(command)
        done, _ = demo.run()
        assert done.returncode == 1
        assert f"demo: {what} failed with status 5" in done.stderr
    (demo.directory / "fail").unlink()
    assert demo.run()[0].returncode == 0


def test_a_model_that_was_trained_further_and_added_files_stay(demo):
    def remove():
        arguments = ["scripts/demo.py", "--remove"]
        return subprocess.run([sys.executable, *arguments], cwd=demo.directory, env=environment, capture_output=True)

    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(demo.directory)}
    demo.run()
    trained_on = demo.directory / "demo" / "model" / "step-11"
    trained_on.touch()
    done, calls = demo.run()
    assert (
        done.returncode == 1 and trained_on.exists() and not [call for call in calls if call.startswith("horovodrun")]
    )
    assert "demo/model/step-11 was not left there by the last demo, so demo/model is not removed" in done.stderr
    assert remove().returncode == 1 and trained_on.exists()
    trained_on.unlink()
    (demo.directory / "fail").write_text("train")  # what a demo leaves that did not end is its own
    assert demo.run()[0].returncode == 1
    (demo.directory / "demo" / "model").mkdir()
    (demo.directory / "demo" / "model" / "half").touch()
    (demo.directory / "fail").unlink()
    assert demo.run()[0].returncode == 0
    assert remove().returncode == 0 and not (demo.directory / "demo").exists()


def test_a_model_outside_of_the_demo_is_never_removed(demo, tmp_path_factory):
    model = tmp_path_factory.mktemp("somebodys") / "model"
    model.mkdir()
    demo.flagfile.write_text(f"--model_dir={model}\n")
    done, calls = demo.run()
    assert done.returncode == 1
    assert str(model) in done.stderr and "move it away" in done.stderr
    assert model.exists() and not [call for call in calls if call.startswith("horovodrun")]


def test_workers_is_how_many_train_and_a_last_line_that_is_no_json_is_named(demo):
    assert "horovodrun -np 5 ./run.sh --flagfile=configs/demo.flags --eval_data=" in demo.run(WORKERS="5")[1]
    main = demo.directory / "ctr_trainer" / "__main__.py"
    main.write_text(main.read_text().replace("print(json.dumps(dict(global_step", "print(repr(dict(global_step"))
    done, _ = demo.run()
    assert done.returncode == 1
    assert "demo: evaluating: expected a JSON object as the last line, got" in done.stderr


def test_workers_that_are_no_number_are_refused_before_anything_runs(demo):
    for workers in ("0", "two"):
        done, calls = demo.run(WORKERS=workers)
        assert done.returncode == 1 and calls == []
        assert f"WORKERS={workers}: expected a whole number" in done.stderr
