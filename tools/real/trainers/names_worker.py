"""dws.vllm's extension in workers of vLLM on the CPU, with a digest of their weights."""

from __future__ import annotations

import tools.real.engines.worker
from tools.real.trainers import models


class WorkerExtension(tools.real.engines.worker.WorkerExtension):  # type: ignore[misc]
    def weights_digest(self) -> str:
        """The digest of all parameters and buffers, under vLLM's names."""
        model = self.model_runner.model
        return models.digest({**dict(model.named_parameters()), **dict(model.named_buffers())})
