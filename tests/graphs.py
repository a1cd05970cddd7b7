"""Has TensorFlow's sessions run graphs as they are built, which saves a quarter of the CPU of a short training."""

import os
import sys

# Set for sessions of which the graphs are optimized, as they are for users.
is_optimized = False
# The variable that has a process optimize its graphs. Results differ in their last digits between the two.
OPTIMIZED = "CTR_TRAINER_TEST_OPTIMIZED"


def run_as_built() -> None:
    """Switches the graph optimizer off in each session from now on, unless asked not to or the session sets it."""
    session = sys.modules["tensorflow.python.client.session"]
    if hasattr(session.BaseSession, "inner_init"):
        return

    def initialize(self: object, target: str = "", graph: object = None, config: object = None) -> None:
        if not is_optimized and OPTIMIZED not in os.environ:
            own = session.config_pb2.ConfigProto()
            own.CopyFrom(config or session.context.context().config)
            rewriting = own.graph_options.rewrite_options
            rewriting.disable_meta_optimizer = not rewriting.ListFields()
            config = own
        session.BaseSession.inner_init(self, target, graph, config)

    session.BaseSession.inner_init, session.BaseSession.__init__ = session.BaseSession.__init__, initialize
