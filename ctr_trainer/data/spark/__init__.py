"""Conversion on Spark: tasks on the machines of a cluster encode rows and write the files of the data set.

from ctr_trainer.data.spark import convert

convert(spark.table("clicks"), FeatureSpec.load("my.toml"), "/shared/data/my")
"""

from ctr_trainer.data.spark.conversion import Layout, convert, convert_files

__all__ = ["Layout", "convert", "convert_files"]
