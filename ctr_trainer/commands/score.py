"""Serves predictions of a published model for raw values, over HTTP, until SIGTERM."""

import tempfile

from ctr_trainer.settings.by_flag import require
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.processes import tensorflow_import

GROUPS = (ScoreFlags,)
EXAMPLES = (
    "python -m ctr_trainer score --model=models/ctr/publication",
    "python -m ctr_trainer score --model=s3://bucket/ctr --bind=127.0.0.1:8090 --max_age_secs=600",
    "python -m ctr_trainer score --model=/shared/ctr --bind=0.0.0.0:8080 --token_file=token --tls_cert=cert.pem "
    "--tls_key=key.pem",
)


def run(flags: ScoreFlags) -> None:
    """Serves with one directory for all temporary files, which the next process removes if this one is killed."""
    from ctr_trainer.system.files.temporary import temporary_directory
    from ctr_trainer.system.messages.errors import UserError

    require(flags, "model")
    try:
        import httptools  # noqa: F401, checked before the slow import of TensorFlow
        import orjson  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error}: score needs the extra `score`: pip install 'ctr_trainer[score]'") from None

    with temporary_directory() as place:
        before, tempfile.tempdir = tempfile.tempdir, place  # TensorFlow also writes files when it traces functions.
        try:
            tensorflow_import.load()
            import tensorflow as tf

            from ctr_trainer.live.scoring.server import serve

            tf.get_logger().setLevel("ERROR")  # Hides warnings about TensorFlow 1 names, which are used on purpose.
            serve(flags)
        finally:
            tempfile.tempdir = before
