"""An input that is fed, batch by batch."""

from ctr_trainer.estimator.batch_feed import BatchFeed
from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.graph_input import GraphInput
from ctr_trainer.features.fed import FedFeatures
from ctr_trainer.graph_notes import row_training, step_plan
from ctr_trainer.graph_notes.row_training import RowTraining
from ctr_trainer.hooks.input_hook import InputHook
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed


class BatchInput(GraphInput):
    """Placeholders of the features of a reader's batches.

    Args:
      reader: `GivenReader`.
      spec, statistics: of the data that the model was trained on; the reader's own for a new model.
      has_read: f(), called after each batch; None for nothing.
    """

    fed = True

    def __init__(self, reader, spec, statistics, has_read=None):
        features = FedFeatures(spec, statistics, reader.batch_size)
        super().__init__(features, features.labels)
        self._reader, self._has_read = reader, has_read
        self.batch_size, self.batches, self.epochs = reader.batch_size, reader.steps, reader.epochs
        self.batches_per_epoch, self.in_epochs = reader.steps_per_epoch, reader.in_epochs

    @property
    def uses_embeddings(self):
        return bool(self.features.segments)

    def weights(self, labels):
        return self.features["weight"]

    def connect(self, store, config, spec=None, trained=None, within_training=False, clock=None):
        training = None
        if spec is not None:
            rate = config.embedding.learning_rate
            training = row_training.current() or RowTraining.of_loss(self.features, spec.loss, rate)
        if training and config.embedding.overlap_lookup and self.features.spec.limits:
            raise UserError(
                "overlap_lookup: with [[limits]] of the feature spec a row could go while a step is to train it: leave "
                "out one of the two"
            )
        in_order = config.deterministic and training is not None
        if in_order and self.features.spec.limits and (distributed.size() > 1 or config.embedding.service != "auto"):
            raise UserError(
                "deterministic: with [[limits]] of the feature spec, which keys have rows depends on when workers ask "
                "the store: leave out one of the two, or train with one worker and no service"
            )
        embeddings = Embeddings(
            self.features,
            config.embedding,
            config.seed,
            store,
            # To pull rows ahead of their lookup is a matter of time.
            config.prefetch_batches if training and not in_order else 0,
            trained,
            training and training.learning_rate_scale,
            within_training,
            in_order,
        )

        def make_hook(batches):
            rows = embeddings.feed(batches, training is not None)
            return InputHook(self.features, embeddings, rows, training, clock, self._has_read)

        per_step = step_plan.current().accumulation_steps if training else 1
        return BatchFeed(self, self._reader, embeddings, make_hook, per_step, config.prefetch_batches)
