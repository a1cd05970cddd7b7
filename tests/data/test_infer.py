import datetime
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.data.conversion import meaning
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.conversion.csv_header import see_form
from ctr_trainer.data.conversion.infer import infer
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

ROWS = 400
RNG = np.random.default_rng(0)
COLUMNS = {
    "request": [f"r{i:04}" for i in range(ROWS)],
    "clicked": [i % 4 // 3 for i in range(ROWS)],
    "price": np.round(RNG.lognormal(0, 1.5, ROWS), 3).tolist(),
    "age": [("NA" if i % 10 == 0 else 20 + i % 53) for i in range(ROWS)],
    "user_id": [1000 + i % 97 for i in range(ROWS)],
    "hour": [i % 24 for i in range(ROWS)],
    "city": [("", "Bern", "Köln")[i % 3] for i in range(ROWS)],
    "tags": ["|".join(f"t{k}" for k in range(i % 5)) for i in range(ROWS)],
    "zip": [f"0{i % 9}" for i in range(ROWS)],
    "at": [1_700_000_000 + i for i in range(ROWS)],
    "country": ["CH"] * ROWS,
    "weight": [0.5 + (i % 83) / 7 for i in range(ROWS)],
}


def write_csv(path, columns=COLUMNS, delimiter=",", header=True):
    lines = [list(columns)] if header else []
    lines += zip(*columns.values(), strict=True)
    path.write_text("".join(delimiter.join(map(str, line)) + "\n" for line in lines), encoding="utf-8")
    return path


def comment_of(text, column):
    """The comment above a feature's lines, or behind an id."""
    above = re.search(rf'# (.*)\n(?:name = .*\n)?(?:name|column) = "{column}"\n', text)
    return (above or re.search(rf'"{column}",  # (.*)', text)).group(1)


def test_each_column_becomes_what_it_looks_like_and_a_comment_says_why(tmp_path):
    spec = infer(write_csv(tmp_path / "a.csv"), tmp_path / "spec.toml", progress=False)
    assert spec == FeatureSpec.load(tmp_path / "spec.toml")
    assert spec.name == "spec" and spec.label.column == "clicked"
    assert spec.ids == ("request", "at")
    assert {f.column: (f.name, f.transform) for f in spec.dense} == {
        "price": ("price", "log1p"),
        "age": ("age", "standardize"),
        "weight": ("feature_weight", "standardize"),
    }
    assert {f.name: f.combiner for f in spec.sparse} == {
        "user_id": None,
        "hour": None,
        "city": None,
        "tags": "mean",
        "zip": None,
    }
    assert spec.csv.null_values == ("", "NA")
    text = (tmp_path / "spec.toml").read_text()
    for column, why in {
        "clicked": "0 and 1; 25.00% are 1",
        "price": "skewed",
        "age": "missing in 10.0% and replaced by the median",
        "weight": "not skewed",
        "user_id": "whole numbers with the name of an id, 97 distinct values",
        "hour": "24 distinct values",
        "city": "text, 2 distinct values",
        "tags": "separated by '|'",
        "request": "100% distinct values",
        "at": "a time",
    }.items():
        assert why in comment_of(text, column), column
    assert "# left out: country: only one value" in text


def test_what_is_written_converts_as_it_is(tmp_path, capsys):
    source = write_csv(tmp_path / "a.csv")
    flags = [f"--input={source}", f"--output={tmp_path / 'spec.toml'}"]
    assert cli.main(["convert", "--infer", *flags]) == 0
    assert "label 'clicked', 3 dense and 5 sparse features, 2 columns kept as ids" in capsys.readouterr().out
    spec = FeatureSpec.load(tmp_path / "spec.toml")
    info = convert("csv", source, tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert info.rows == ROWS and info.label_mean == 0.25
    assert info.distinct == {"user_id": 97, "hour": 24, "city": 3, "tags": 4, "zip": 9}
    assert info.statistics["age"]["count"] == 0.9 * ROWS


def test_parquet_types_decide(tmp_path):
    start = datetime.datetime(2024, 1, 1)
    table = pa.table(
        {
            "target": [i // 4 % 2 == 0 for i in range(ROWS)],
            "item": pa.array([f"i{i % 30}" for i in range(ROWS)]).dictionary_encode(),
            "amount": pa.array([i * 7 % 300 for i in range(ROWS)], pa.int32()),
            "at": [start + datetime.timedelta(hours=i) for i in range(ROWS)],
            "history": [list(range(i % 4)) for i in range(ROWS)],
            "vector": [[0.5, 0.25]] * ROWS,
            "info": [{"a": 1}] * ROWS,
            "empty": pa.nulls(ROWS, pa.string()),
        }
    )
    (tmp_path / "data" / "day=mo").mkdir(parents=True)
    pq.write_table(table, tmp_path / "data" / "day=mo" / "a.parquet")
    pq.write_table(table, tmp_path / "data" / "b.parquet")
    spec = infer(tmp_path / "data" / "day=mo", tmp_path / "s.toml", progress=False)
    assert spec.label.column == "target" and spec.ids == ("at",)
    assert [f.name for f in spec.dense] == ["amount"]
    assert {f.name: f.combiner for f in spec.sparse} == {
        "item": None,
        "at_hour": None,
        "at_weekday": None,
        "history": "mean",
    }
    text = (tmp_path / "s.toml").read_text()
    for what in ("vector: of an unsupported type", "info: of an unsupported type", "empty: no value"):
        assert f"# left out: {what}" in text
    info = convert("parquet", tmp_path / "data" / "b.parquet", tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert (info.rows, info.label_mean) == (ROWS, 0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [[3.0], [3.0, 4.0], [3.0, 3.0, 3.0]])
def test_few_numbers_have_no_order(values):
    assert not meaning.is_ordered(np.array(values))


def test_a_column_of_different_types_in_two_files_is_named(tmp_path):
    (tmp_path / "data").mkdir()
    for name, tags in (("a", "x"), ("b", ["x"])):
        pq.write_table(pa.table({"y": [0, 1], "tags": [tags] * 2}), tmp_path / "data" / f"{name}.parquet")
    with pytest.raises(UserError, match="different types in the input's files.*tags"):
        infer(tmp_path / "data", tmp_path / "s.toml", progress=False)


@pytest.mark.parametrize(
    ("label", "values", "rule"),
    [
        ("income", [">50K" if i % 4 == 0 else "<=50K" for i in range(ROWS)], {"positive": ">50K"}),
        ("rating", [1 + i % 5 for i in range(ROWS)], {"threshold": 3.0}),
    ],
)
def test_a_label_of_other_values_is_made_by_a_rule(tmp_path, label, values, rule):
    source = write_csv(tmp_path / "a.csv", {label: values, "hour": COLUMNS["hour"]})
    spec = infer(source, tmp_path / "s.toml", label=label, progress=False)
    assert {k: v for k, v in vars(spec.label).items() if k in ("positive", "threshold") and v is not None} == rule
    assert f"{label}" in (tmp_path / "s.toml").read_text()


@pytest.mark.parametrize(
    ("columns", "flags", "message"),
    [
        (
            {"a": [1, 2, 3], "b": [0, 1, 0], "c": [1, 0, 0]},
            [],
            "the columns of 0 and 1 are b, c. Name it with --label; the columns are a, b, c",
        ),
        ({"a": ["x", "y", "z"]}, [], "no column has 0 and 1 only. Name it with --label; the columns are a"),
        ({"a": [0, 1, 1]}, [], "apart from the label 'a', it has no column"),
        ({"a": [0, 1, 1]}, ["--label=b"], "--label=b: no such column; there are a"),
        ({"clicked": [0, 1, 1]}, ["--label=click"], "no such column; there are clicked; did you mean clicked?"),
        ({"a": ["x", "y", "z"], "b": [0, 1, 0]}, ["--label=a"], "--label=a: the column has 3 different values"),
        ({"a": [0, 1, 1]}, ["--split=random:0.5,0.5"], "so it does not take --split"),
        ({"a": [0, 1, 1]}, ["--format=criteo"], "not at format criteo"),
        ({"a": []}, [], "the input has no rows"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(tmp_path, capsys, columns, flags, message):
    source = write_csv(tmp_path / "a.csv", columns)
    paths = [f"--input={source}", f"--output={tmp_path / 's.toml'}"]
    assert cli.main(["convert", "--infer", *paths, *flags]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_an_existing_spec_is_not_overwritten(tmp_path):
    (tmp_path / "s.toml").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        infer(write_csv(tmp_path / "a.csv"), tmp_path / "s.toml", progress=False)


def _logs(rows):
    """Whole numbers of all sorts, as columns of numbers."""
    rng = np.random.default_rng(1)
    popularity = 1 / np.arange(1, 301) ** 1.05
    return {
        "click": rng.integers(0, 2, rows),
        "user": rng.integers(0, 900, rows),
        "item": rng.permutation(300)[rng.choice(300, rows, p=popularity / popularity.sum())],
        "country": rng.permutation(60)[rng.choice(60, rows, p=popularity[:60] / popularity[:60].sum())],
        "ip": rng.integers(0, 2**32, 700)[rng.integers(0, 700, rows)],
        "age": np.clip(rng.normal(40, 13, rows), 16, 90).round().astype(int),
        "views": rng.geometric(0.1, rows) - 1,
        "cents": np.round(rng.lognormal(7, 1, rows)).astype(int),
        "few": rng.choice(5, rows, p=[0.5, 0.3, 0.12, 0.06, 0.02]),
    }


@pytest.mark.parametrize(("named", "rows"), [(True, 20_000), (False, 20_000), (False, 4000)])
def test_whole_numbers_that_come_back_are_ids_and_amounts_are_numbers(tmp_path, named, rows):
    columns = _logs(rows)
    names = list(columns) if named else [f"c{number}" for number in range(1, len(columns) + 1)]
    source = write_csv(tmp_path / "a.csv", dict(zip(names, columns.values(), strict=True)), header=named)
    spec = infer(source, tmp_path / "s.toml", label=names[0], progress=False)
    single = [f.column for f in spec.sparse if not f.is_bucketised]
    assert single == names[1:5]
    assert [f.column for f in spec.dense] == names[5:]
    levels = [(f"{name}_level", name) for name in names[5:]] if rows == 20_000 else []  # fewer rows are too few
    assert [(f.name, f.column) for f in spec.bucketised] == levels


def test_the_numbers_of_criteo_and_adult_stay_numbers(tmp_path, real_data):
    criteo = infer(real_data / "criteo" / "train_head.tsv", tmp_path / "c.toml", label="c1", progress=False)
    assert [f.name for f in criteo.dense] == [f"c{number}" for number in range(2, 15)]
    assert {(f.transform, f.default) for f in criteo.dense} == {("log1p", 0.0)}  # as in configs/features/criteo.toml
    adult = infer(real_data / "adult" / "adult.data", tmp_path / "a.toml", label="c15", progress=False)
    assert [f.name for f in adult.dense] == ["c1", "c3", "c11", "c12", "c13"]
    assert {f.column for f in adult.bucketised} == {f.name for f in adult.dense}
    (education,) = (f for f in adult.sparse if f.name == "c5")  # 16 levels, a category each
    assert not education.is_bucketised


@pytest.mark.parametrize("values", [(0, 1), (1, 2), (0.5, 1.5), (-1, 1)])
@pytest.mark.parametrize("name", ["x", "premium_count"])
def test_two_numbers_are_two_categories_whatever_their_name(tmp_path, name, values):
    columns = {
        "clicked": COLUMNS["clicked"],
        "price": COLUMNS["price"],
        name: [values[i % 3 // 2] for i in range(ROWS)],
    }
    source = write_csv(tmp_path / "a.csv", columns)
    spec = infer(source, tmp_path / "s.toml", label="clicked", progress=False)
    assert [f.name for f in spec.sparse] == [name] and [f.name for f in spec.dense] == ["price"]
    why = f"only the numbers {values[0]:g} and {values[1]:g}, as two categories"
    assert why in comment_of((tmp_path / "s.toml").read_text(), name)
    assert convert("csv", source, tmp_path / "out", spec, progress=False)["parts"]["all"].distinct[name] == 2


def _banners(rows):
    """Ids that were given out in groups to campaigns, whose banners are about equally frequent."""
    rng = np.random.default_rng(0)
    starts, sizes = 432 + 3 * np.cumsum(rng.integers(5, 60, 400)), rng.integers(1, 12, 400)
    ids = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
    popularity = np.repeat(rng.lognormal(0, 1.5, 400), sizes) * rng.lognormal(0, 0.5, len(ids))
    return rng.choice(ids, rows, p=popularity / popularity.sum())


@pytest.mark.parametrize("name", ["C14", "account_number"])
def test_ids_of_neighbours_that_are_about_as_frequent_are_categories(tmp_path, name):
    columns = {"clicked": [i % 4 // 3 for i in range(20_000)], name: _banners(20_000)}
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", label="clicked", progress=False)
    assert [f.name for f in spec.sparse] == [name] and not spec.dense
    assert "whole numbers distributed unlike amounts" in comment_of((tmp_path / "s.toml").read_text(), name)


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_pandas_row_numbers_are_left_out(tmp_path, name):
    columns = {name: [i % 300 for i in range(ROWS)], "clicked": COLUMNS["clicked"], "hour": COLUMNS["hour"]}
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", progress=False)
    assert spec.csv.header and spec.ids == () and [f.name for f in spec.sparse] == ["hour"]
    assert f"# left out: {name or 'the first column, without a name'}: row numbers" in (tmp_path / "s.toml").read_text()
    assert convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)["parts"]["all"].rows == ROWS


@pytest.mark.parametrize("header", [True, False])
def test_columns_that_blanks_separate_are_seen(tmp_path, header):
    columns = {"clicked": COLUMNS["clicked"], "user_id": COLUMNS["user_id"], "price": COLUMNS["price"]}
    columns["history"] = [f"i{i % 5},i{i % 7}" for i in range(ROWS)]
    spec = infer(write_csv(tmp_path / "a.csv", columns, " ", header), tmp_path / "s.toml", progress=False)
    assert (spec.csv.delimiter, spec.csv.header) == (" ", header)
    (history,) = (f for f in spec.sparse if f.combiner)
    assert history.separator == ","
    assert convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)["parts"]["all"].rows == ROWS


@pytest.mark.parametrize(
    ("lines", "delimiter"),
    [
        (["first name,home town,click", "A B,C D,1", "E F,G H,0"], ","),  # 3 fields by commas, 5 by blanks
        (["User ID,Item ID,Click time", "1,2,3", "1,2"], ","),
        (["a b c", "1 2 3", "1 2"], " "),
        (["1 2 3 a,b", "4 5 6 c,d"], " "),
        (["a;b,c", "1,5;2,5"], ";"),
        (["a|b,c|d", "1|2,3|4"], "|"),
        (["a", "1"], ","),
    ],
)
def test_the_delimiter_is_the_one_that_fits_all_lines(tmp_path, lines, delimiter):
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert see_form(tmp_path / "a.csv")[0].delimiter == delimiter


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%y%m%d%H"])
def test_a_time_is_kept_to_split_by_and_gives_hour_and_weekday(tmp_path, form):
    start = datetime.datetime(2014, 10, 21)
    times = [(start + datetime.timedelta(hours=i)).strftime(form) for i in range(ROWS)]
    columns = {"clicked": COLUMNS["clicked"], "hour": times, "user": COLUMNS["user_id"]}
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", progress=False)
    assert spec.ids == ("hour",)
    assert {f.name: f.derive for f in spec.sparse} == {"hour_hour": "hour", "hour_weekday": "weekday", "user": None}
    split = re.search(r"--split=time:...:(\w+)", (tmp_path / "s.toml").read_text()).group(1)
    parts = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, split=f"time:0.8,0.2:{split}", progress=False)
    assert parts["parts"]["train"].distinct["hour_hour"] == 24


@pytest.mark.parametrize(
    ("write", "form"),
    [
        (lambda items: str(items), {"brackets": True, "separator": ","}),
        (lambda items: str([f"i{item}" for item in items]), {"brackets": True, "separator": ","}),
        (lambda items: str(np.array(items)), {"brackets": True, "separator": " "}),
        (lambda items: " ".join(map(str, items)), {"brackets": False, "separator": " "}),
        (lambda items: "|".join(map(str, items)), {"brackets": False, "separator": "|"}),
    ],
)
def test_a_list_of_another_columns_values_is_proposed_as_its_history(tmp_path, write, form):
    rng = np.random.default_rng(0)
    histories = [write(rng.integers(100, 160, rng.integers(0, 9)).tolist()) for _ in range(ROWS)]
    prefix = "i" if "'" in histories[0] + histories[1] + histories[2] else ""
    columns = {
        "clicked": COLUMNS["clicked"],
        "watched": [f'"{history}"' for history in histories],
        "item": [f"{prefix}{item}" for item in rng.integers(100, 170, ROWS)],
        "hour": COLUMNS["hour"],
    }
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", progress=False)
    sequence, bag = spec.sequences + spec.bags
    assert (sequence.name, sequence.slot, sequence.max_length) == ("watched", "item", 8)
    assert (bag.name, bag.column, bag.slot, bag.combiner) == ("watched_bag", "watched", "item", "mean")
    assert {key: getattr(sequence, key) for key in form} == form
    assert "models that read histories" in comment_of((tmp_path / "s.toml").read_text(), "watched")
    lists = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)["lists"]
    assert lists["watched"] == pytest.approx({"mean": 4, "largest": 8, "empty": 1 / 9, "cut": 0}, abs=0.5)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *((name, "id") for name in ("user", "userId", "movieid", "item_id2", "device_type", "age_group", "C_country")),
        *((name, "number") for name in ("age", "hours-per-week", "education_num", "n_users", "item_price", "userAge")),
        *((name, None) for name in ("c1", "I7", "x", "fnlwgt", "", "account_number")),
    ],
)
def test_a_name_says_id_or_number_or_nothing(name, what):
    assert (meaning.is_id_name(name), meaning.is_number_name(name)) == (what == "id", what == "number")


def test_a_logarithm_is_taken_where_it_leaves_values_apart(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "clicked": COLUMNS["clicked"],
        "price": np.round(rng.lognormal(2, 1, ROWS), 2),
        "years": 2000 - np.round(rng.exponential(12, ROWS)).astype(int),  # skewed to the left
        "offset": 1e6 + np.round(rng.exponential(50, ROWS), 3),  # whose logarithms are nearly one number
    }
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", progress=False)
    assert {f.name: f.transform for f in spec.dense} == {
        "price": "log1p",
        "years": "standardize",
        "offset": "standardize",
    }


@pytest.mark.parametrize(("name", "ids"), [("timestamp", ("timestamp",)), ("amount", ())])
def test_seconds_before_2001_are_a_time_if_the_name_says_so(tmp_path, name, ids):
    columns = {"clicked": COLUMNS["clicked"], name: [970_000_000 + 3600 * i for i in range(ROWS)]}
    assert infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", progress=False).ids == ids


def test_a_table_of_numbers_trains_with_the_models_that_the_refusal_names(tmp_path, capsys):
    rng = np.random.default_rng(0)
    numbers = np.round(rng.normal(size=(300, 3)), 4)
    columns = {"y": (numbers[:, 0] > 0.5).astype(int) ^ (rng.random(300) < 0.1)}
    columns |= {f"f{n}": numbers[:, n] for n in range(3)}
    source = write_csv(tmp_path / "a.csv", columns)
    infer(source, tmp_path / "s.toml", progress=False)
    flags = ["train", f"--train_data={source}", f"--feature_spec={tmp_path / 's.toml'}", "--epochs=1", "--threads=1"]
    assert cli.main([*flags, f"--model_dir={tmp_path / 'default'}"]) == 1
    said = re.search(r"needs sparse features, .* such as (\w+) or (\w+)", capsys.readouterr().err)
    for model in said.groups():
        assert cli.main([*flags, f"--model_dir={tmp_path / model}", f"--model={model}"]) == 0
