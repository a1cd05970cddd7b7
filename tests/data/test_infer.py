import datetime
import errno
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.conversion.csv_header import see_form
from ctr_trainer.data.conversion.infer import infer
from ctr_trainer.data.conversion.sample import read_sample
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import read

ROWS = 1000
RNG = np.random.default_rng(0)
AGES = RNG.integers(18, 71, ROWS)
USERS = RNG.integers(0, 40, ROWS)
# Clicks depend smoothly on the age, and on the user by a number of the user's own.
CLICKS = RNG.random(ROWS) < 1 / (1 + np.exp(1.5 - 0.08 * (AGES - 44) - 1.5 * RNG.normal(size=40)[USERS]))
COLUMNS = {
    "request": [f"r{i:04}" for i in range(ROWS)],
    "clicked": CLICKS.astype(int).tolist(),
    "price": np.round(RNG.lognormal(0, 1.5, ROWS), 3).tolist(),
    "age": [("NA" if i % 10 == 0 else age) for i, age in enumerate(AGES)],
    "u": (1000 + 17 * RNG.permutation(40)[USERS]).tolist(),
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


def test_each_column_becomes_what_the_data_show_and_a_comment_says_why(tmp_path, capsys):
    source = write_csv(tmp_path / "a.csv")
    flags = [f"--input={source}", f"--output={tmp_path / 'spec.toml'}"]
    assert cli.main(["convert", "--infer", *flags]) == 0
    assert (
        "label 'clicked', 6 dense and 5 sparse features; crosses: 0; kept as ids: request, at; "
        in capsys.readouterr().out
    )
    spec = FeatureSpec.load(tmp_path / "spec.toml")
    assert spec.name == "spec" and spec.label.column == "clicked" and spec.ids == ("request", "at")
    assert {f.column: (f.name, f.transform) for f in spec.dense if not f.pieces} == {
        "price": ("price", "log1p"),
        "age": ("age", "standardize"),
        "weight": ("feature_weight", "standardize"),
    }
    kinds = {"u": None, "hour": None, "city": None, "tags": "mean", "zip": None}
    assert {f.name: f.combiner for f in spec.sparse} == kinds
    assert spec.csv.null_values == ("", "NA")
    text = (tmp_path / "spec.toml").read_text()
    for column, why in {
        "clicked": f"0 and 1; {CLICKS.mean():.2%} are 1",
        "price": "numbers, .*; no gain: .* as an amount, .* without; from .* skewness .*; never missing",
        "age": r"whole numbers, 53 .*; held-out log loss 0.\d{4} as a category, 0.\d{4} as an amount, "
        r"0.\d{4} without; from 18 to 70, skewness .*, replaced by the median; missing in 10.0%",
        "u": r"40 distinct .* 0.\d{4} as a category, 0.\d{4} as an amount, .* without; neighbouring numbers are unlike",
        "hour": "whole numbers, 24 distinct values; no gain: .* as a category, .* as an amount",
        "city": "text, 2 distinct values; no gain: .*; missing in 33.4%",
        "tags": r"separated by '\|', on average 2.5 of 4; missing in 20.0%",
        "request": "text, 1,000 distinct values; .*; 100% are distinct",
        "at": "a time: for --split=time:...:at; never missing",
    }.items():
        assert re.search(why, comment_of(text, column)), column
    assert "# left out: country: only one value; never missing" in text
    info = convert("csv", source, tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert info.rows == ROWS and info.label_mean == pytest.approx(CLICKS.mean())
    assert info.distinct == {"u": 40, "hour": 24, "city": 3, "tags": 4, "zip": 9}
    assert info.statistics["age"]["count"] == 0.9 * ROWS


def test_parquet_types_decide(tmp_path):
    start = datetime.datetime(2024, 1, 1)
    table = pa.table(
        {
            "target": CLICKS,
            "item": pa.array([f"i{i % 30}" for i in range(ROWS)]).dictionary_encode(),
            "amount": pa.array(AGES, pa.int32()),
            "digits": [str(age) for age in AGES],
            "ratio": [float("nan") if age == 30 else age / 7 for age in AGES],
            "at": [start + datetime.timedelta(hours=i) for i in range(ROWS)],
            "history": [list(range(i % 4)) for i in range(ROWS)],
            "wait": [datetime.timedelta(milliseconds=250 * int(age)) for age in AGES],
            "vector": [[0.5, 0.25]] * ROWS,
            "info": [{"a": 1}] * ROWS,
            "empty": pa.nulls(ROWS, pa.string()),
        }
    )
    (tmp_path / "data" / "day=mo").mkdir(parents=True)
    pq.write_table(table, tmp_path / "data" / "day=mo" / "a.parquet")
    pq.write_table(table, tmp_path / "data" / "b.parquet")
    spec = infer(tmp_path / "data" / "day=mo", tmp_path / "s.toml")
    assert spec.label.column == "target" and spec.ids == ("at",)
    assert [f.name for f in spec.dense if not f.pieces] == ["amount", "digits", "ratio", "wait"]
    kinds = {"item": None, "at_hour": None, "at_weekday": None, "history": "mean"}
    assert {f.name: f.combiner for f in spec.sparse} == kinds
    text = (tmp_path / "s.toml").read_text()
    for what in ("vector: of an unsupported type", "info: of an unsupported type", "empty: no value"):
        assert f"# left out: {what}" in text
    info = convert("parquet", tmp_path / "data" / "b.parquet", tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert (info.rows, info.label_mean) == (ROWS, pytest.approx(CLICKS.mean()))
    assert info.statistics["wait"]["max"] == max(AGES) / 4  # Seconds.


def test_a_column_of_different_types_in_two_files_is_named(tmp_path):
    (tmp_path / "data").mkdir()
    for name, tags in (("a", "x"), ("b", ["x"])):
        pq.write_table(pa.table({"y": [0, 1], "tags": [tags] * 2}), tmp_path / "data" / f"{name}.parquet")
    with pytest.raises(UserError, match="different types in the input's files.*tags"):
        infer(tmp_path / "data", tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("name", "no", "yes", "rule", "said"),
    [
        ("Churn", "No", "Yes", {"positive": "Yes"}, "'Yes' is positive and 'No' is not; "),
        ("target", -1, 1, {"threshold": 1.0}, "at least 1 is positive, of -1 and 1; "),
        ("other", "<=50K", ">50K", {"positive": ">50K"}, "'>50K' is positive and '<=50K' is not, the rarer value"),
    ],
)
def test_a_label_of_two_values_is_read_and_said(tmp_path, caplog, name, no, yes, rule, said):
    caplog.set_level("INFO")
    columns = {"SeniorCitizen": [i % 2 for i in range(ROWS)], "u": COLUMNS["u"], name: np.where(CLICKS, yes, no)}
    source = write_csv(tmp_path / "a.csv", columns)
    spec = infer(source, tmp_path / "s.toml", label=name if name == "other" else None)
    assert spec.label.column == name
    assert {k: v for k, v in vars(spec.label).items() if k in ("positive", "threshold") and v is not None} == rule
    assert said in comment_of((tmp_path / "s.toml").read_text(), name) and said in caplog.text
    info = convert("csv", source, tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert info.label_mean == pytest.approx(CLICKS.mean())


def test_a_label_of_ratings_gets_a_threshold_and_rows_without_it_are_left_out(tmp_path):
    columns = {"rating": ["" if i % 50 == 0 else 1 + i % 5 for i in range(ROWS)], "u": COLUMNS["u"]}
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", label="rating")
    assert spec.label.threshold == 3.0
    assert "at least 3 is positive, of from 1 to 5" in (tmp_path / "s.toml").read_text()


TWO = {"SeniorCitizen": [0, 1, 0, 0], "Partner": ["Yes", "No", "No", "No"]}


@pytest.mark.parametrize(
    ("columns", "flags", "message"),
    [
        (
            TWO,
            [],
            "none with two values is so named: SeniorCitizen: 0 and 1; 25.00% are 1; Partner: 'Yes' is positive and "
            "'No' is not; 25.00% are positive. Name it with --label; the columns are SeniorCitizen, Partner",
        ),
        (
            TWO | {"click": [0, 1, 1, 1], "Purchased": [1, 0, 0, 0]},
            [],
            "several columns with two values are named like labels: click: 0 and 1; 75.00% are 1; Purchased: 0 and 1; "
            "25.00% are 1. Name it with --label",
        ),
        ({"a": ["x", "y", "z"]}, [], "no column has two values. Name it with --label; the columns are a"),
        ({"y": [0, 1, 1]}, [], "apart from the label 'y', no column can be a feature"),
        ({"clicked": [0, 1]}, ["--label=click"], "--label=click: no such column; there are clicked; did you mean cl"),
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
        infer(write_csv(tmp_path / "a.csv"), tmp_path / "s.toml")
    with pytest.raises(UserError, match="s3://bucket/s.toml: a feature spec is written to a file on a disk"):
        infer(tmp_path / "a.csv", "s3://bucket/s.toml")


def test_a_spec_that_cannot_be_written_leaves_no_part_of_it(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.replace", full)
    source = write_csv(tmp_path / "a.csv")
    with pytest.raises(UserError, match="s.toml: cannot be written: No space left"):
        infer(source, tmp_path / "s.toml")
    assert os.listdir(tmp_path) == ["a.csv"]


def test_a_file_or_link_made_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    source, output = write_csv(tmp_path / "a.csv"), tmp_path / "s.toml"

    def reading(*given):
        output.symlink_to(tmp_path / "nowhere")
        return read_sample(*given)

    monkeypatch.setattr("ctr_trainer.data.conversion.infer.read_sample", reading)
    for _ in range(2):  # The second time, the link is there from the beginning.
        with pytest.raises(UserError, match="already exists"):
            infer(source, output)
    assert not output.exists()


def accesses(rows, seed=0):
    """Nine columns of ids with few rows per id and a rate of their own, as those of Amazon's employees; and amounts."""
    rng = np.random.default_rng(seed)
    logits, columns = np.full(rows, 2.5), {}
    for name, count, effect in (
        ("RESOURCE", rows // 4, 1.2), ("MGR_ID", rows // 8, 1.2), ("ROLE_ROLLUP_1", 128, 0.8),
        ("ROLE_ROLLUP_2", 177, 0.8), ("ROLE_DEPTNAME", 449, 1.0), ("ROLE_TITLE", 343, 0.8),
        ("ROLE_FAMILY_DESC", 2358, 1.0), ("ROLE_FAMILY", 67, 0.8), ("ROLE_CODE", 343, 0.8),
    ):  # fmt: skip
        popularity = 1 / np.arange(1, count + 1) ** rng.uniform(0.6, 1)
        drawn = rng.choice(count, rows, p=popularity / popularity.sum())
        columns[name] = rng.choice(300_000, count, replace=False)[drawn]
        logits += effect * rng.normal(size=count)[drawn]
    columns["years"] = np.clip(rng.normal(40, 13, rows), 16, 90).round().astype(int)
    columns["cents"] = np.round(rng.lognormal(7, 1, rows)).astype(int)
    columns["views"] = rng.geometric(0.05, rows) - 1
    logits += 0.05 * (columns["years"] - 40) + np.log(columns["cents"] + 1) - 7 - 0.5 * np.log1p(columns["views"]) + 1
    columns["nothing"] = rng.integers(0, 900, rows)
    columns["rare_nothing"] = rng.integers(0, rows, rows)
    return {"ACTION": (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(int), **columns}


@pytest.mark.parametrize(("named", "rows"), [(True, 30_000), (False, 10_000)])
def test_ids_become_categories_and_amounts_become_numbers(tmp_path, caplog, named, rows):
    caplog.set_level("INFO")
    columns = accesses(rows)
    names = list(columns) if named else [f"c{number}" for number in range(1, len(columns) + 1)]
    source = write_csv(tmp_path / "a.csv", dict(zip(names, columns.values(), strict=True)), header=named)
    spec = infer(source, tmp_path / "s.toml", label=None if named else "c1")
    assert [f.column for f in spec.sparse if not f.is_bucketised] == [*names[1:10], names[13]]
    amounts = [*names[10:13], names[14]]
    assert [f.column for f in spec.dense] == amounts
    levels = [(f"{name}_level", name) for name in amounts] if rows >= 20_000 else []  # fewer rows are too few
    assert [(f.name, f.column) for f in spec.bucketised] == levels
    assert f"columns without influence of their own on the label: {names[13]}, {names[14]}" in caplog.text


def test_a_number_that_counts_the_rows_is_an_id_even_if_it_tells_something(tmp_path):
    rng, count = np.random.default_rng(0), np.arange(20_000)
    clicks = (rng.random(20_000) < 0.2 + 0.6 * count / 20_000).astype(int)
    source = write_csv(tmp_path / "a.csv", {"click": clicks, "request": count, "x": rng.random(20_000)})
    spec = infer(source, tmp_path / "s.toml")
    assert spec.ids == ("request",) and {f.column for f in spec.dense} == {"x"}
    assert "and the rows are in its order" in (tmp_path / "s.toml").read_text()


def amounts_and_categories():
    """A column `x` that is measured as a category and as an amount, each of which adds to the other."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 200, 20_000)
    logits = 0.02 * (numbers - 100) + 1.2 * rng.normal(size=200)[numbers]
    columns = {"click": (rng.random(20_000) < 1 / (1 + np.exp(-logits))).astype(int), "x": numbers}
    # Rare numbers, for which the neighbours say more than the few rows of their own.
    columns["x"][:2000] = rare = rng.integers(200, 100_000, 2000)
    columns["click"][:2000] = rng.random(2000) < np.where(rare < 50_000, 0.1, 0.9)
    return columns


def test_a_number_is_a_category_and_an_amount_if_each_adds_to_the_other(tmp_path):
    spec = infer(write_csv(tmp_path / "a.csv", amounts_and_categories()), tmp_path / "s.toml")
    assert [f.name for f in spec.dense] == ["x"]
    assert [(f.name, f.column, f.is_bucketised) for f in spec.sparse] == [("x_category", "x", False)]


def test_crosses_are_the_pairs_that_add_to_the_single_columns(tmp_path):
    rng, rows = np.random.default_rng(0), 20_000
    columns = {name: [f"{name}{value}" for value in rng.integers(0, 12, rows)] for name in ("a", "b", "c", "d")}
    columns["b_x_c"] = [f"v{value}" for value in rng.integers(0, 3, rows)]  # Named like a cross.
    columns["e"] = [value.replace("a", "e") for value in columns["a"]]  # It says what a says.
    effects = {pair: size * rng.normal(size=(12, 12)) for pair, size in ((("a", "d"), 1.5), (("b", "c"), 0.8))}
    numbers = {name: np.array([int(value[1:]) for value in values]) for name, values in columns.items()}
    logits = np.sum([0.3 * (numbers[name] - 6) for name in "abcd"], 0)
    logits += sum(effect[numbers[one], numbers[other]] for (one, other), effect in effects.items())
    columns["click"] = (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(int).tolist()
    source = write_csv(tmp_path / "a.csv", columns)
    assert cli.main(["convert", "--infer", "--crosses=4", f"--input={source}", f"--output={tmp_path / 's.toml'}"]) == 0
    spec = FeatureSpec.load(tmp_path / "s.toml")
    assert [f.columns for f in spec.cross] in ([("a", "d"), ("b", "c")], [("d", "e"), ("b", "c")])
    assert spec.cross[1].name == "b_x_c_" and "b_x_c" in [f.name for f in spec.sparse]
    text = (tmp_path / "s.toml").read_text()
    losses = re.findall(r"# held-out log loss (.*), (.*) with the single .*\n(?:name.*\n)?columns", text)
    (first, before), (second, between) = losses
    assert float(second) < float(between) and first == between and float(first) < float(before) - 0.05
    assert not infer(source, tmp_path / "none.toml").cross


def test_the_numbers_of_criteo_and_adult_stay_numbers(tmp_path, real_data):
    criteo = infer(real_data / "criteo" / "train_head.tsv", tmp_path / "c.toml", label="c1")
    amounts = {f.name for f in criteo.dense}
    assert amounts >= {f"c{number}" for number in (2, 3, 4, 6, 7, 8, 12, 14)}
    assert amounts <= {f"c{number}" for number in range(2, 15)}
    assert {(f.transform, f.default) for f in criteo.dense} == {("log1p", 0.0)}  # as in configs/features/criteo.toml
    adult = infer(real_data / "adult" / "adult.data", tmp_path / "a.toml", label="c15")
    assert {f.name for f in adult.dense} >= {"c1", "c3", "c11", "c13"}
    assert {f.column for f in adult.bucketised} == {f.column for f in adult.dense}
    assert {f.column for f in adult.dense if f.pieces} == {f.name for f in adult.dense if not f.pieces}


def test_ids_of_movielens_are_categories_and_titles_and_genres_are_bags(tmp_path, real_data):
    movies = (real_data / "movielens" / "movies.dat").read_text(encoding="latin-1").splitlines()
    titles = {number: (title, genres) for number, title, genres in (line.split("::") for line in movies)}
    lines = (real_data / "movielens" / "ratings.dat").read_text().splitlines()[:30_000]
    rows = [[*line.split("::"), *titles[line.split("::")[1]]] for line in lines]
    columns = dict(zip(("u", "m", "stars", "second", "name", "kinds"), zip(*rows, strict=True), strict=True))
    spec = infer(write_csv(tmp_path / "a.tsv", columns, "\t"), tmp_path / "s.toml", label="stars")
    assert spec.ids == ("second",) and spec.label.threshold == 4.0
    assert {f.column: (f.combiner, f.separator) for f in spec.sparse} == {
        "u": (None, "|"), "m": (None, "|"), "second": (None, "|"), "name": ("mean", " "), "kinds": ("mean", "|"),
    }  # fmt: skip


def test_two_numbers_are_two_categories(tmp_path):
    pairs = [(0, 1), (1, 2), (0.5, 1.5), (-1, 1)]
    columns = {f"x{at}": [pair[i % 3 // 2] for i in range(ROWS)] for at, pair in enumerate(pairs)}
    source = write_csv(tmp_path / "a.csv", {"clicked": COLUMNS["clicked"], "price": COLUMNS["price"], **columns})
    spec = infer(source, tmp_path / "s.toml")
    assert [f.name for f in spec.sparse] == list(columns) and [f.name for f in spec.dense] == ["price"]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_pandas_row_numbers_are_left_out(tmp_path, name):
    columns = {name: [i % 300 for i in range(ROWS)], "clicked": COLUMNS["clicked"], "hour": COLUMNS["hour"]}
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml")
    assert spec.csv.header and spec.ids == () and [f.name for f in spec.sparse] == ["hour"]
    assert f"# left out: {name or 'the first column, without a name'}: row numbers" in (tmp_path / "s.toml").read_text()
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
    columns = {"clicked": COLUMNS["clicked"], "hour": times, "user": COLUMNS["u"]}
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml")
    assert spec.ids == ("hour",)
    assert {f.name: f.derive for f in spec.sparse} == {"hour_hour": "hour", "hour_weekday": "weekday", "user": None}
    split = re.search(r"--split=time:...:(\w+)", (tmp_path / "s.toml").read_text()).group(1)
    parts = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, split=f"time:0.8,0.2:{split}", progress=False)
    assert parts["parts"]["train"].distinct["hour_hour"] == 24


@pytest.mark.parametrize(
    ("write", "form"),
    [
        (lambda items: str([f"i{item}" for item in items]), {"brackets": True, "separator": ","}),
        (lambda items: str(np.array(items)), {"brackets": True, "separator": " "}),
        (lambda items: " ".join(map(str, items)), {"brackets": False, "separator": " "}),
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
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml")
    sequence, bag = spec.sequences + spec.bags
    assert (sequence.name, sequence.slot, sequence.max_length) == ("watched", "item", 8)
    assert (bag.name, bag.column, bag.slot, bag.combiner) == ("watched_bag", "watched", "item", "mean")
    assert {key: getattr(sequence, key) for key in form} == form
    assert "models that read histories" in comment_of((tmp_path / "s.toml").read_text(), "watched")
    lists = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)["lists"]
    assert lists["watched"] == pytest.approx({"mean": 4, "largest": 8, "empty": 1 / 9, "cut": 0}, abs=0.5)


def test_a_history_shares_the_rows_of_a_column_that_is_both_category_and_amount(tmp_path):
    columns = amounts_and_categories()
    columns["x_history"] = ["|".join(map(str, columns["x"][i : i + 3])) for i in range(20_000)]
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml")
    assert {f.slot for f in spec.sparse} == {"x_category"} and [f.column for f in spec.sequences] == ["x_history"]


def test_a_logarithm_is_taken_where_it_leaves_values_apart(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "clicked": COLUMNS["clicked"],
        "price": np.round(rng.lognormal(2, 1, ROWS), 2),
        "years": 2000 - np.round(rng.exponential(12, ROWS), 3),  # skewed to the left
        "offset": 1e6 + np.round(rng.exponential(50, ROWS), 3),  # whose logarithms are nearly one number
    }
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml")
    transforms = {"price": "log1p", "years": "standardize", "offset": "standardize"}
    assert {f.name: f.transform for f in spec.dense} == transforms


def test_seconds_are_a_time_and_ids_of_ten_digits_are_not(tmp_path):
    columns = {
        "clicked": COLUMNS["clicked"],
        "second": RNG.integers(970_000_000, 980_000_000, ROWS),
        "hourly": 1_200_000_000 + 3600 * RNG.integers(0, 70, ROWS),
        "id": RNG.integers(1_200_000_000, 1_210_000_000, 70)[RNG.integers(0, 70, ROWS)],
        "phone": RNG.integers(1_000_000_000, 2_900_000_000, ROWS),
    }
    spec = infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml")
    assert spec.ids == ("second", "hourly", "phone")
    assert {f.name for f in spec.sparse} == {
        "second_hour", "second_weekday", "hourly_hour", "hourly_weekday", "id",
    }  # fmt: skip
    assert "distinct, which are too rare to learn from" in comment_of((tmp_path / "s.toml").read_text(), "phone")


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", None])
def test_a_date_that_the_rows_are_not_sorted_by_gives_an_age(tmp_path, form):
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    dates = [start + datetime.timedelta(days=int(day)) for day in RNG.integers(0, 900, ROWS)]
    texts = [date.strftime(form) if form else int(date.timestamp()) for date in dates]
    source = write_csv(tmp_path / "a.csv", {"clicked": COLUMNS["clicked"], "joined": texts, "u": COLUMNS["u"]})
    spec = infer(source, tmp_path / "s.toml")
    assert {f.name: f.derive for f in spec.sparse} == {"joined_weekday": "weekday", "u": None}
    (age,) = spec.dense
    assert (age.name, age.column, age.transform) == ("joined_age", "joined", "standardize")
    table = read(convert("csv", source, tmp_path / "out", spec, progress=False)["output"])
    expected = np.array([date.timestamp() for date in dates], np.float32)
    np.testing.assert_array_equal(table["joined_age"].to_numpy(), expected)


def test_text_of_several_words_becomes_a_bag_and_names_of_places_do_not(tmp_path):
    words = ["red", "blue", "small", "large", "wool", "silk", "shirt", "coat", "hat", "scarf", "for", "men", "women"]
    titles = [" ".join(RNG.choice(words, RNG.integers(2, 6), replace=False)) for _ in range(ROWS)]
    places = [f"{a} {b}" for a, b in zip("ABCDEFGHIJ" * 4, range(100, 140), strict=True)]
    columns = {"clicked": COLUMNS["clicked"], "title": titles, "place": [places[i % 40] for i in range(ROWS)]}
    columns["shop"] = [("Home and garden", "Sports and outdoors", "Books and music")[i % 3] for i in range(ROWS)]
    source = write_csv(tmp_path / "a.csv", columns)
    spec = infer(source, tmp_path / "s.toml")
    combiners = {f.name: (f.combiner, f.separator) for f in spec.sparse if f.combiner}
    assert combiners == {"title": ("mean", " ")} and {f.name for f in spec.sparse} >= {"place", "shop"}
    lists = convert("csv", source, tmp_path / "out", spec, progress=False)["lists"]
    assert lists["title"]["mean"] == pytest.approx(3.5, abs=0.2)


def test_numbers_that_carry_the_signal_get_pieces_and_train_tabm(tmp_path, caplog):
    rng = np.random.default_rng(0)
    numbers = np.round(rng.normal(size=(300, 3)), 4)
    columns = {"y": (numbers[:, 0] > 0.5).astype(int) ^ (rng.random(300) < 0.1)}
    columns |= {f"f{n}": [*map(str, numbers[:, n])] for n in range(3)}
    columns["f1"][:100] = [""] * 100
    source = write_csv(tmp_path / "a.csv", columns)
    spec = infer(source, tmp_path / "s.toml")
    assert [(f.column, f.default) for f in spec.dense if f.pieces] == [(f.name, f.default) for f in spec.dense[:3]]
    why = "because amounts have 100% of the gain of all columns"
    assert why in comment_of((tmp_path / "s.toml").read_text(), "f0_pieces")
    flags = ["train", f"--train_data={source}", f"--feature_spec={tmp_path / 's.toml'}", "--epochs=1", "--threads=1"]
    caplog.set_level("INFO")
    assert cli.main([*flags, f"--model_dir={tmp_path / 'default'}"]) == 0
    assert "model=tabm" in caplog.text


def test_categories_that_carry_the_signal_leave_numbers_without_pieces(tmp_path):
    rng = np.random.default_rng(0)
    city, price = rng.integers(0, 5, 2000), np.round(rng.normal(size=2000), 4)
    clicks = rng.random(2000) < 1 / (1 + np.exp(-2 * (city - 2) - 0.5 * price))
    source = write_csv(
        tmp_path / "a.csv", {"click": clicks.astype(int), "city": [*map("c{}".format, city)], "price": price}
    )
    assert [f.name for f in infer(source, tmp_path / "s.toml").dense] == ["price"]
