"""What the sessions of a graph are fed."""


class Feed:
    """Feeds nothing: of a graph that reads its input itself.

    Args:
      inputs: the `GraphInput` that the graph was built from.
      hooks: session hooks that the input needs.

    Attributes:
      inputs: the same.
      hooks: the same. They are others after each `rewind`.
      embeddings: `Embeddings` behind the graph's embedding inputs; None of a graph that is fed nothing.
      latencies: `Latency` of each operation on batches and rows, in whatever thread it is done.
      batch: the `Batch` of the step now running; None of a graph that is fed nothing.
      examples: how many were fed since `rewind`.
      steps: how many optimizer steps the input is for, from its start on; None if it does not know.
    """

    embeddings = batch = steps = None
    latencies = ()
    examples = 0

    def __init__(self, inputs, hooks=()):
        self.inputs, self.hooks = inputs, [*hooks]

    def rewind(self):
        """Feeds from the first batch on; what the graph reads itself begins anew in each session."""

    def flush(self):
        """Returns when the store has all that the steps so far changed."""

    def position_after(self, steps):
        """-> where the input stands after `steps` more steps of every worker; None if it does not know."""
        return

    def epochs_after(self, steps):
        """-> how many epochs, a float, are done after `steps` more steps; None if the input does not know."""
        return

    def beside(self, predictions):
        """-> by column, the predictions for the examples of `batch`, and what the data has beside them."""
        return predictions

    def close(self):
        """Ends the threads that read ahead and that sync; before the store is closed, which both use."""
