"""Which metrics an evaluation computes."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class MetricsConfig(Settings, title="Metrics"):
    """Which metrics an evaluation computes beside those that it always does; both take memory, see `ScoredExamples`."""

    exact_auc: bool = setting(
        False, "compute AUC and AUC-PR from all scores, not from bins; 24 bytes of memory an example"
    )
    group_by: str = setting(
        "", "id column or single-valued feature, as user: compute the AUC within its values too", "column"
    )
