"""Starts the services of a training while its workers still import TensorFlow."""

import contextlib

from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.files.paths import is_local
from ctr_trainer.processes import hardware
from ctr_trainer.ranks.notices import Placement


@contextlib.contextmanager
def services_ahead(experiment):
    """Gives the `LocalServices` of an `Experiment`, which rank 0 has begun to start if its training will use them.

    They take a second to start, and TensorFlow takes three to import. Not a collective: what `horovodrun` says of this
    process decides. Those of a model directory in a store start later, since its `Staging` clears the place of their
    logs first.
    """
    config, model_dir = experiment.run.embedding, experiment.model.model_dir
    place = Placement.of_this_process()
    are_used = config.service == "auto" and place.rank == 0 and place.size > 1 and place.is_on_one_host
    services = LocalServices.of(config, model_dir)
    with contextlib.closing(services):
        if are_used and is_local(model_dir):
            services.start(hardware.own_cores())
        yield services
