"""Why a job ends: each rank records its error, and one of them reports the first cause in one sentence."""
