"""Converts raw logs to Parquet files with a column per feature and hashed keys, and prints a summary."""

import dataclasses
import importlib.resources
import math
from typing import TYPE_CHECKING, Any

from ctr_trainer.commands.experiment.checks import require_files
from ctr_trainer.settings.by_flag import require
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

if TYPE_CHECKING:  # At run time the functions import it, so that the help appears immediately.
    from ctr_trainer.features.spec import FeatureSpec


@dataclasses.dataclass(frozen=True)
class ConvertFlags(Settings, title="Convert"):
    format: str = setting(
        "", "format of the input", choices=("criteo", "csv", "parquet", "tfrecord", "libsvm", "libffm", "synthetic")
    )
    input: str = setting(
        "",
        "files to convert, comma separated: paths, directories, patterns or URLs",
        "path",
    )
    output: str = setting("", "directory, or its URL, to write; with --infer the file of the feature spec", "path")
    infer: bool = setting(
        False,
        "write a first feature spec for an input, to be reviewed, and convert nothing; without --format, its format is "
        "recognized",
    )
    label: str = setting(
        "", "column of the label, for --infer; if not given, the only column of two values named like a label"
    )
    crosses: int = setting(
        0, "most crosses of two columns that --infer adds to the spec: those that tell most of the label", minimum=0
    )
    feature_spec: str = setting("", "feature spec (TOML); criteo, libsvm and synthetic have a default", "path")
    unlabelled: bool = setting(False, "convert data without labels, to predict on; neither labels nor weights are read")
    split: str = setting(
        "",
        "how to split the rows: none; random:0.8,0.1,0.1; or time:0.8,0.1,0.1:COLUMN, by the order of a column; two "
        "shares are train and test, three are train, valid and test",
        "shares",
    )
    seed: int | None = setting(
        None, "seed of a random split, 2026 if not given, or of the synthetic data, 1 if not given", minimum=0
    )
    threads: int = setting(0, "threads that encode blocks of the input; 0 for one per core", "threads", minimum=0)
    rows: int = setting(
        2_000_000, "training rows of the synthetic data; a tenth of them are added as test rows", "rows", minimum=1
    )
    encoding: str = setting("", "encoding of CSV files in place of the feature spec's, which is utf-8, such as latin-1")
    max_bad_rows: int = setting(0, "rows that may be unreadable; each is named and counted", "rows", minimum=0)
    engine: str = setting(
        "local",
        "where to convert: on this machine (local), or on a Spark cluster that sees the same paths (spark)",
        choices=("local", "spark"),
    )


GROUPS = (ConvertFlags,)
EXAMPLES = (
    "python -m ctr_trainer convert --infer --input='logs/*.csv' --output=my.toml",
    "python -m ctr_trainer convert --format=synthetic --output=demo/data",
    "python -m ctr_trainer convert --format=criteo --input=train.txt --output=data/criteo --split=random:0.9,0.1",
    "python -m ctr_trainer convert --format=csv --input='logs/*.csv' --feature_spec=my.toml --output=data/my",
    "python -m ctr_trainer convert --format=libsvm --input=a9a.txt --output=data/a9a --split=random:0.9,0.1",
    "python -m ctr_trainer convert --format=criteo --input=test.txt --output=data/criteo_test --unlabelled",
    "python -m ctr_trainer convert --format=parquet --input=spark/clicks --feature_spec=my.toml --output=data/my",
    "python -m ctr_trainer convert --engine=spark --format=criteo --input='/shared/day_*' --output=/shared/criteo",
)
_SPEC_OF_FORMAT = {"criteo": "criteo.toml", "libsvm": "libsvm.toml", "synthetic": "demo.toml"}


def run(flags: ConvertFlags) -> None:
    """Converts."""
    from ctr_trainer.features.spec import FeatureSpec

    if flags.infer:
        _infer(flags)
        return
    if flags.label or flags.crosses:
        raise UserError("--label and --crosses are for --infer; for a conversion the feature spec has them")
    require(flags, "format", "output")
    if flags.format != "synthetic":
        require(flags, "input")
    spec = FeatureSpec.load(flags.feature_spec or _default_spec(flags.format))
    if flags.input and flags.engine == "local":
        require_files(flags.input)
    tensorflow_import.load()
    from ctr_trainer.data.conversion.convert import convert

    if flags.encoding:
        if flags.format != "csv":
            raise UserError(f"--encoding is for format csv; text of format {flags.format} is UTF-8")
        spec = dataclasses.replace(spec, csv=dataclasses.replace(spec.csv, encoding=flags.encoding))
    source = flags.input.split(",") if flags.input else None
    spec = spec.without_labels() if flags.unlabelled else spec
    options: dict[str, Any] = dict(
        split=flags.split, split_seed=2026 if flags.seed is None else flags.seed, max_bad_rows=flags.max_bad_rows
    )
    if flags.engine == "spark":
        summary = _with_spark(flags, source, spec, options)
    else:
        options |= dict(rows=flags.rows, seed=1 if flags.seed is None else flags.seed, num_threads=flags.threads)
        summary = convert(flags.format, source, flags.output, spec, **options)
    print(format_summary(summary), flush=True)


def _with_spark(
    flags: ConvertFlags, source: list[str] | None, spec: "FeatureSpec", options: dict[str, Any]
) -> dict[str, Any]:
    from ctr_trainer.data.spark import Layout, convert_files
    from ctr_trainer.data.spark.conversion import session

    if flags.threads:
        raise UserError("--threads is for --engine=local; the number of concurrent tasks is a setting of Spark")
    with session() as spark:
        return convert_files(spark, flags.format, source or [], flags.output, spec, Layout(**options))


def _infer(flags: ConvertFlags) -> None:
    require(flags, "input", "output")
    if flags.format in ("criteo", "synthetic"):
        raise UserError(f"--infer looks at data without a feature spec of its own, not at format {flags.format}")
    for name in ("feature_spec", "split", "unlabelled"):
        if getattr(flags, name) not in ("", "none", False):
            raise UserError(f"--infer writes a feature spec and converts nothing, so it does not take --{name}")
    require_files(flags.input)
    tensorflow_import.load()
    from ctr_trainer.data.conversion.infer import infer

    spec = infer(
        flags.input.split(","),
        flags.output,
        format=flags.format or None,
        label=flags.label or None,
        max_bad_rows=flags.max_bad_rows,
        encoding=flags.encoding or "utf-8",
        crosses=flags.crosses,
    )
    print(
        f"{flags.output}: label {spec.label.column!r}, {len(spec.dense)} dense and {len(spec.sparse)} sparse "
        f"features; crosses: {len(spec.cross)}; kept as ids: {', '.join(spec.ids) or 'none'}; its comments say why. "
        f"Review it, then convert with --feature_spec={flags.output}",
        flush=True,
    )


def _default_spec(format: str) -> str:
    """Returns the path of the package's feature spec for a format."""
    if format not in _SPEC_OF_FORMAT:
        raise UserError(f"--feature_spec is missing: the package has no feature spec for format {format}")
    return str(importlib.resources.files("ctr_trainer.features") / "specs" / _SPEC_OF_FORMAT[format])


def format_summary(summary: dict[str, Any]) -> str:
    """Formats the result of `convert` as small tables: a line per part, then a line per feature of the first part."""
    from ctr_trainer.commands.reports.comparison import format_table
    from ctr_trainer.features.columns import BOUNDARIES

    parts, lists = summary["parts"], summary["lists"]
    part, info = next(iter(parts.items()))
    several = len(info.label_means) > 1
    tables = [[["part", "rows", *(f"{name if several else 'label'} mean" for name in info.label_means), "files"]]]
    for name, each in parts.items():
        means = (f"{mean:.4f}" for mean in each.label_means.values())
        tables[0].append([name, f"{each.rows:,}", *means, str(len(each.files))])
    if info.distinct:
        counts = {**info.distinct, "total": sum(info.distinct.values())}
        tables.append([["feature", f"distinct keys ({part})"], *([name, f"{n:,}"] for name, n in counts.items())])
    if lists:
        tables.append([["list", "mean length", "largest", "empty", "cut"]])
        for name, s in lists.items():
            tables[-1].append([name, f"{s['mean']:.2f}", f"{s['largest']:,}", f"{s['empty']:.1%}", f"{s['cut']:.1%}"])
    moments = {name: fitted for name, fitted in info.statistics.items() if "mean" in fitted}
    if moments:
        tables.append([["feature", "present", "mean", "std", "min", "max"]])
        for name, s in moments.items():
            figures = (f"{s[key]:.5g}" for key in ("mean", "std", "min", "max"))
            tables[-1].append([name, f"{s['count'] / max(info.rows, 1):.1%}", *figures])
    lines = [f"{summary['output']}: {summary['seconds']:.1f} s, {summary['bad_rows']} bad rows left out"]
    lines += [line for table in tables for line in format_table(table[0], table[1:])]
    for name, fitted in info.statistics.items():
        if BOUNDARIES in fitted:
            cuts = [cut for cut in fitted[BOUNDARIES] if cut < fitted.get("max", math.inf)]
            shown, what = ", ".join(f"{cut:.5g}" for cut in cuts), "pieces" if name in moments else "buckets"
            lines.append(f"{name}: {len(cuts) + 1} {what}, cut at {shown}")
    lines += [f"{name}: {value}" for name, value in info.extra.items()]
    return "\n".join(lines)
