"""Every benchmark imports what it uses; it and the package call what is there, with arguments that it takes."""

import importlib
import pathlib

import pytest

from tests.benchmarks.calls import wrong_calls

ROOT = pathlib.Path(__file__).parents[2]
OPTIONAL = ("pyspark",)  # Libraries that the package does not need.


def test_every_benchmark_imports_and_each_call_fits_its_signature():
    benchmarks = sorted((ROOT / "benchmarks").glob("*.py"))
    modules, wrong = {"ctr_trainer", *(path.stem for path in benchmarks)}, []
    for path in [*benchmarks, *sorted((ROOT / "ctr_trainer").rglob("*.py"))]:
        try:
            if path in benchmarks:
                importlib.import_module(path.stem)
            wrong += [f"{path}, {each}" for each in wrong_calls(path.read_text(encoding="utf-8"), modules)]
        except ModuleNotFoundError as error:
            assert error.name in OPTIONAL, (path.stem, str(error))
    assert wrong == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("pin_cores(1, local_size=2)", []),
        ("pin_cores(1, 2, {0})", ["line 2: pin_cores(): too many positional arguments"]),
        ("pin_cores(1)", ["line 2: pin_cores(): missing a required argument: 'local_size'"]),
        ("pin_cores(*arguments)", []),
        ("local_service.Watch(1)", ["line 2: local_service.Watch(): missing a required argument: 'log_file'"]),
        ("pin_cores = print\npin_cores(1)", []),
        (
            "local_service.gone(*arguments)",
            ["line 2: module 'ctr_trainer.embedding.service.local_service' has no attribute 'gone'"],
        ),
    ],
)
def test_a_call_is_bound_to_the_signature_of_what_it_calls(call, said):
    imports = "from ctr_trainer.system.processes.hardware import pin_cores"
    imports += "; from ctr_trainer.embedding.service import local_service"
    assert wrong_calls(f"{imports}\n{call}\n", {"ctr_trainer"}) == said
