"""The Spark session of a command."""

import contextlib
import os
import sys

from ctr_trainer.messages.errors import UserError


@contextlib.contextmanager
def session():
    """Starts a SparkSession, or takes the one of `spark-submit`; stopped at the end, with its tasks.

    The cluster is the one that Spark's own settings name: `spark-defaults.conf`, `spark-submit --master` or
    PYSPARK_SUBMIT_ARGS; without any, all cores of this machine.

    Raises:
      UserError: PySpark is not installed, or Spark does not start.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UserError("--engine=spark needs PySpark 3.5 or 4: pip install 'ctr_trainer[spark]', and Java") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Else executors take the first python3 that they find.
    try:
        spark = SparkSession.builder.appName("ctr_trainer convert").getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise UserError(f"Spark does not start: {error}; it needs Java 17 (JAVA_HOME)") from error
    try:
        yield spark
    finally:
        spark.stop()
