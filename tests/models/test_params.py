import dataclasses

import pytest

from ctr_trainer import cli
from ctr_trainer.models import lr, param_texts
from ctr_trainer.models.params import SHARED, ModelParams
from ctr_trainer.models.registry import MODELS, find_model
from ctr_trainer.settings.setting import declared, setting
from ctr_trainer.system.messages.errors import UserError
from tests import small

OWN_MODEL = """
import dataclasses

import tensorflow as tf

from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.head import binary_head
from ctr_trainer.models.params import ModelParams
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    scale: float = setting(2.0, "factor that multiplies the logits", minimum=0.0)


def model_fn(features, labels, mode, params):
    return binary_head(features, labels, mode, params, params.scale * linear(features))
"""


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """Of every type."""

    layers: int = setting(3, "number of layers", minimum=1)
    rate: float = 0.5
    share: bool = False
    shape: str = setting("stacked", "order of the layers", choices=("stacked", "parallel"))
    widths: tuple[int, ...] = setting((8, 4), "widths", minimum=1, fewest=1)
    names: tuple[str, ...] = ()
    note: str = ""


def _parse(*texts):
    return param_texts.parse("made", Params, texts, dict(hidden_units=(2,)))


def test_each_type_is_read_from_its_text():
    texts = ["layers=2", "rate=1e-3", "share=true", "shape=parallel", "widths=128:64", "names=a:b", "note=x=y"]
    own = dict(layers=2, rate=1e-3, share=True, shape="parallel", widths=(128, 64), names=("a", "b"), note="x=y")
    assert _parse(*texts) == Params(hidden_units=(2,), **own)


def test_the_last_of_a_name_counts():
    assert _parse("layers=2", "rate=0.25", "layers=5") == Params(hidden_units=(2,), rate=0.25, layers=5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("layer=3", "there is no 'layer'"),
        ("layers", "expected name=value"),
        ("layers=many", "expected an integer"),
        ("layers=2.5", "expected an integer"),
        ("layers=-2", "must be at least 1"),
        ("rate=fast", "expected a number"),
        ("share=maybe", "expected true or false"),
        ("shape=round", "choose one of stacked, parallel"),
        ("widths=8:wide", "expected integers as in 128:64"),
        ("widths=8:0", "must each be at least 1"),
        ("widths=", "expected 1 or more, each at least 1"),
        ("dropout=0.1", "dropout is a flag of its own, --dropout"),
    ],
)
def test_a_wrong_one_is_refused_with_the_list_of_what_is_accepted(text, problem):
    with pytest.raises(UserError) as error:
        _parse(text)
    lines = str(error.value).splitlines()
    assert lines[0].startswith(f"--model_params={text}")
    assert problem in lines[0]
    assert lines[1:] == ["made takes --model_params=name=value,name=value of", *param_texts.accepted(Params)[1:]]
    assert lines[2].split(maxsplit=1) == ["layers", "number of layers [an integer]; default 3"]
    assert lines[5].split(maxsplit=1) == ["shape", "order of the layers [stacked|parallel]; default stacked"]
    assert lines[6].endswith("[integers as in 128:64]; default 8:4")


def test_a_model_without_params_of_its_own_says_so():
    with pytest.raises(UserError, match="there is no 'layers'\nlr takes no --model_params"):
        param_texts.parse("lr", ModelParams, ["layers=3"], {})


def test_shared_params_are_checked_too():
    with pytest.raises(UserError, match="^activation=step: choose one of relu, "):
        ModelParams(activation="step")
    with pytest.raises(UserError, match="^dropout=1 must be at least 0 and below 1"):
        ModelParams(dropout=1.0)
    with pytest.raises(UserError, match="batch_norm_epsilon=0 must be above 0"):
        ModelParams(batch_norm_epsilon=0.0)


def test_a_name_finds_its_function_and_its_params():
    assert find_model("lr").model_fn is lr.model_fn
    assert find_model("lr").params_class is ModelParams


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("depfm", "model=depfm: choose one of lr, .*deepfm"),
        ("nowhere:model_fn", "No module named 'nowhere'; is the module on PYTHONPATH"),
        ("ctr_trainer.models.lr:model", "ctr_trainer.models.lr has no function 'model'"),
        ("wrong_params:model_fn", "the Params of wrong_params is not a subclass of"),
        ("no_dataclass:model_fn", "the Params of no_dataclass lacks @dataclasses.dataclass"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, monkeypatch, name, problem):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wrong_params.py").write_text("class Params: pass\ndef model_fn(): pass\n")
    lines = ["from ctr_trainer.models.params import ModelParams", "class Params(ModelParams): layers: int = 3"]
    (tmp_path / "no_dataclass.py").write_text("\n".join([*lines, "def model_fn(): pass", ""]))
    with pytest.raises(UserError, match=problem):
        find_model(name)


def test_every_param_of_every_model_has_its_help():
    for name in MODELS:
        for field in dataclasses.fields(find_model(name).params_class):
            assert field.name in SHARED or declared(field).help, (name, field.name)


def test_the_help_lists_the_models_and_a_models_params(capsys):
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  --model={name} " in text for name in MODELS)
    assert cli.main(["train", "--model=lr", "--help"]) == 0
    assert "\nlr takes no --model_params of its own, only those of all models: " in capsys.readouterr().out
    assert cli.main(["train", "--model=l", "--help"]) == 2
    assert "model=l: choose one of lr" in capsys.readouterr().err


def test_a_users_own_model_has_its_own_params(tmp_path, monkeypatch, capsys):
    (tmp_path / "scaled.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = small.make(tmp_path, rows=50)
    (tmp_path / "flags").write_text(f"--model=scaled:model_fn\n--train_data={data}\n--model_params=scale=9\n")
    train = ["train", f"--flagfile={tmp_path / 'flags'}", f"--model_dir={tmp_path / 'model'}", "--threads=1"]
    assert cli.main([*train, "--model_params=scale=-1"]) == 1  # the command line's counts, not the flagfile's
    error = capsys.readouterr().err
    assert "--model_params=scale=-1 must be at least 0\nscaled:model_fn takes --model_params" in error
    assert "scale                     factor that multiplies the logits [a number]; default 2\n" in error
    assert not (tmp_path / "model").exists()
    assert cli.main([*train, "--model_params=scale=3", "--batch_size=16"]) == 0
    assert (tmp_path / "model" / "train_summary.json").exists()
