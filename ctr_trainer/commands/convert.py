"""Turns raw logs into Parquet files, one column a feature, keys hashed once; prints a summary."""

import pathlib

from ctr_trainer.experiment.paths import require_files
from ctr_trainer.flags.convert import ConvertFlags
from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.by_flag import require

GROUPS = (ConvertFlags,)
EXAMPLES = (
    "python -m ctr_trainer convert --infer --input='logs/*.csv' --output=my.toml",
    "python -m ctr_trainer convert --format=synthetic --output=demo/data",
    "python -m ctr_trainer convert --format=criteo --input=train.txt --output=data/criteo --split=random:0.9,0.1",
    "python -m ctr_trainer convert --format=movielens --input=ml-1m --output=data/ml --split=random:0.8,0.1,0.1",
    "python -m ctr_trainer convert --format=csv --input='logs/*.csv' --feature_spec=my.toml --output=data/my",
    "python -m ctr_trainer convert --format=libsvm --input=a9a.txt --output=data/a9a --split=random:0.9,0.1",
    "python -m ctr_trainer convert --format=criteo --input=test.txt --output=data/criteo_test --unlabelled",
    "python -m ctr_trainer convert --format=parquet --input=spark/clicks --feature_spec=my.toml --output=data/my",
    "python -m ctr_trainer convert --engine=spark --format=criteo --input='/shared/day_*' --output=/shared/criteo",
)
_SPECS = pathlib.Path(__file__).parents[2] / "configs" / "features"
_SPEC_OF_FORMAT = {
    "criteo": "criteo.toml",
    "libsvm": "libsvm.toml",
    "movielens": "movielens.toml",
    "synthetic": "demo.toml",
}


def run(flags):
    """Converts."""
    from ctr_trainer.features.spec import FeatureSpec

    if flags.infer:
        _infer(flags)
        return
    if flags.label:
        raise UserError("--label goes with --infer; to convert, the feature spec names the label")
    require(flags, "format", "output")
    if flags.format != "synthetic":
        require(flags, "input")
    spec = FeatureSpec.load(flags.feature_spec or _default_spec(flags.format))
    if flags.input and flags.engine == "local":
        require_files(flags.input)
    from ctr_trainer.data.convert import convert, format_summary  # It imports TensorFlow, which takes seconds.

    source = flags.input.split(",") if flags.input else None
    spec = spec.without_labels() if flags.unlabelled else spec
    options = dict(
        split=flags.split,
        split_seed=flags.split_seed,
        rows_per_file=flags.rows_per_file,
        rows_per_group=flags.rows_per_group,
        max_bad_rows=flags.max_bad_rows,
    )
    if flags.engine == "spark":
        summary = _with_spark(flags, source, spec, options)
    else:
        more = dict(rows=flags.rows, seed=flags.synthetic_seed, num_threads=flags.num_threads)
        summary = convert(flags.format, source, flags.output, spec, **options, **more)
    print(format_summary(summary), flush=True)


def _with_spark(flags, source, spec, options):
    from ctr_trainer.spark import Layout, convert_files
    from ctr_trainer.spark.session import session

    if flags.num_threads:
        raise UserError("--num_threads is of --engine=local; Spark's own settings say how many tasks run at a time")
    with session() as spark:
        return convert_files(spark, flags.format, source, flags.output, spec, Layout(**options))


def _infer(flags):
    require(flags, "input", "output")
    if flags.format not in ("", "csv", "parquet", "libsvm", "libffm"):
        raise UserError(f"--infer looks at csv, parquet, libsvm and libffm, not at format {flags.format}")
    if flags.label and flags.format in ("libsvm", "libffm"):
        raise UserError(f"--label={flags.label}: the label of format {flags.format} is the first number of each line")
    for name in ("feature_spec", "split", "unlabelled"):
        if getattr(flags, name) not in ("", "none", False):
            raise UserError(f"--infer writes a feature spec and converts nothing, so --{name} does not go with it")
    require_files(flags.input)
    from ctr_trainer.data.infer import infer

    spec = infer(flags.input.split(","), flags.output, flags.format or None, flags.label or None, flags.max_bad_rows)
    print(
        f"{flags.output}: label {spec.label.column!r}, {len(spec.dense)} dense and {len(spec.sparse)} sparse features, "
        f"{len(spec.ids)} columns kept as ids; its comments say why. Look through it, then convert with "
        f"--feature_spec={flags.output}",
        flush=True,
    )


def _default_spec(format):
    path = _SPECS / _SPEC_OF_FORMAT.get(format, "")
    if not path.is_file():
        raise UserError(f"--feature_spec is missing: format {format} has no feature spec of its own beside the package")
    return path
