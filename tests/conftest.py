import gc
import os
import pathlib
import signal
import sys

import pytest

from ctr_trainer.system.processes import tensorflow_import
from tests import graphs, object_store

tensorflow_import.load()
# A shell's job in the background ignores the signal, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Until `pytest_collection_finish`: the imports of 300 modules make a million objects that stay.
gc.disable()


# How the reasons of skips begin that no installation removes.
_LACKS_OF_A_MACHINE = (
    "simulated machines are network namespaces",
    "no real data",
    "only root",
    "the file system",
    "this processor",
)


@pytest.fixture
def full_disk(monkeypatch):
    """Each file that `LocalPath.writing` opens is on a disk without space."""
    open_file = open

    def opened(path, mode="r", *arguments, **named):
        if mode == "xb":
            os.symlink("/dev/full", path)
            mode = "wb"
        return open_file(path, mode, *arguments, **named)

    monkeypatch.setattr("builtins.open", opened)


def pytest_addoption(parser):
    parser.addoption(
        "--all-installed",
        action="store_true",
        help="Fails if a test is skipped because a program or a package is missing that could be installed.",
    )


def pytest_terminal_summary(terminalreporter, config):
    """Lists the skips that an installation would remove, if they fail."""
    for reason in _skips_for_what_is_missing(config):
        terminalreporter.write_line(f"--all-installed: a test was skipped: {reason}", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Fails if there are such skips."""
    if session.exitstatus == pytest.ExitCode.OK and _skips_for_what_is_missing(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips_for_what_is_missing(config):
    """Returns the reasons of these skips; none without the option and in the processes of xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not config.getoption("--all-installed"):
        return []
    reasons = {report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", ())}
    return sorted(reason for reason in reasons if not reason.startswith(_LACKS_OF_A_MACHINE))


def pytest_collection_modifyitems(items):
    """Spreads the files with jobs and other long tests, which often wait, over the first four fifths of the others.

    So processors are never idle, and all processes of tests end at the same time.
    """
    long = {item.path for item in items if item.get_closest_marker("integration") or item.get_closest_marker("slow")}
    files, place = list(dict.fromkeys(item.path for item in items)), {}
    for is_long, share in ((True, 0.8), (False, 1.0)):
        some = [path for path in files if (path in long) == is_long]
        place |= {path: share * number / len(some) for number, path in enumerate(some)}
    items.sort(key=lambda item: place[item.path])


def pytest_collection_finish():
    """Has the garbage collector, which rests during the imports, leave alone what they made.

    That is a fifth of the time of tests that make graphs.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Has sessions run graphs as they are built, but in tests/golden and where tests/models/test_models.py says so."""
    graphs.is_optimized = item.path.parent.name == "golden"
    if "tensorflow.python.client.session" in sys.modules:
        graphs.run_as_built()
    _enter_eager_mode()  # For fixtures of modules.


@pytest.fixture(autouse=True)
def _same_process():
    """Fails a test that leaves the state of this process changed; a fixture of its module may change that."""
    _enter_eager_mode()
    before = _state()
    yield
    after = _state()
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    assert not changed, f"left {', '.join(changed)} changed"


# Set by pytest, by `distributed.init`, and by the first imports of scikit-learn and matplotlib.
_OWN = {"PYTEST_CURRENT_TEST", "HOROVOD_FUSION_THRESHOLD", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "MPLCONFIGDIR"}


def _state():
    """Returns what all tests of this process share."""
    determinism = sys.modules.get("tensorflow.python.framework.config")
    return {
        **{f"${name}": value for name, value in os.environ.items() if name not in _OWN},
        "the SIGINT handler": signal.getsignal(signal.SIGINT),
        "the SIGTERM handler": signal.getsignal(signal.SIGTERM),
        "the working directory": os.getcwd(),
        "TensorFlow's determinism": determinism is not None and determinism.is_op_determinism_enabled(),
    }


def _enter_eager_mode():
    """Switches TensorFlow's eager mode on again, which an Estimator that a test or a fixture made has switched off."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and not tensorflow.executing_eagerly():
        tensorflow.compat.v1.reset_default_graph()
        tensorflow.compat.v1.enable_eager_execution()


@pytest.fixture
def warm_python(monkeypatch):
    """Has this process start commands of this package in processes that have imported TensorFlow already."""
    from tests.parallel import launch

    monkeypatch.setattr(sys, "executable", launch.warm_python())


@pytest.fixture(scope="session")
def real_data():
    """The directory of the real data sets (movielens/, criteo/, adult/), which may not be redistributed."""
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    path = pathlib.Path(os.environ.get("CTR_TRAINER_TEST_DATA", beside))
    if not (path / "movielens" / "ratings.dat").exists():
        pytest.skip(
            f"no real data in {path}: MovieLens and Criteo may not be redistributed; set CTR_TRAINER_TEST_DATA to a "
            "directory with movielens/, criteo/ and adult/ to run this test"
        )
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An `ObjectStore` with an empty bucket, which this process and those that it starts use."""
    with object_store.running(tmp_path_factory.mktemp("store")) as found, object_store.environment(found):
        yield found
