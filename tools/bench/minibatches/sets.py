"""Sets of sample lengths that are like those of the paper, and the costs of its models.

The paper ("Revisiting Parameter Server in LLM Post-Training") gives no lengths. Ours are drawn from
log-normal distributions; what is not within the bounds is drawn again. Medians and widths were
fitted to the first column of the paper's table 6, and those of AIME to the first one of its table 4.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from dws.balance import Cost


@dataclasses.dataclass(frozen=True)
class LengthSet:
    """Lengths in tokens: log-normal, between bounds.

    Attributes:
      median, sigma: of the distribution without its bounds.
      limit: tokens that fit into a microbatch; None for the longest sample drawn.
    """

    median: float
    sigma: float
    shortest: int
    longest: int
    limit: int | None = None

    def draw(self, count: int, seed: int) -> tuple[int, ...]:
        """Returns lengths, the same for the same arguments."""
        generator = np.random.default_rng(seed)
        kept = np.empty(0)
        while len(kept) < count:
            drawn = np.exp(generator.normal(np.log(self.median), self.sigma, 2 * count))
            within = (drawn >= self.shortest) & (drawn <= self.longest)
            kept = np.concatenate([kept, drawn[within]])
        return tuple(kept[:count].astype(int).tolist())


LONG_ALIGN = LengthSet(10_167, 1.0, 4_000, 65_536, limit=65_536)
SETS = {
    "LongAlign": LONG_ALIGN,
    "SWE-Smith": LengthSet(23_670, 1.1, 2_000, 32_768, limit=32_768),
}
# Answers of the model itself, so their lengths differ by the model.
AIME = {
    "1.5B": LengthSet(3_000, 0.30, 200, 16_384),
    "7B": LengthSet(3_000, 0.40, 200, 16_384),
    "14B": LengthSet(3_000, 0.40, 200, 16_384),
}
# At b / a tokens both parts cost the same. The first two are the authors' fits to measured times; the others are the
# ratio of the models' operations: all matrices, the head too, beside causal attention.
COSTS = {
    "1.5B": Cost(1.0, 42_200.0),
    "7B": Cost(1.0, 64_500.0),
    "14B": Cost(1.0, 56_900.0),
    "32B": Cost(1.0, 97_600.0),
}
