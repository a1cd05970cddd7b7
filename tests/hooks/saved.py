"""What stands for `Saving` beside hooks."""


class Saved:
    """Notes the steps that are to be saved, each once, as `Saving` does.

    Args:
      takes: f(), called where a checkpoint is begun.

    Attributes:
      steps: list of them.
    """

    def __init__(self, takes=lambda: None):
        self.steps, self._takes = [], takes

    def __call__(self, session, step):
        self.begin(session, step)

    def begin(self, session, step):
        if self.steps[-1:] != [step]:
            self.steps.append(step)
            self._takes()

    def look(self):
        """Nothing is under way."""
