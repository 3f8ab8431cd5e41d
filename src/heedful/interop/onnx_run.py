"""The graphs of an ONNX export at work in ONNX Runtime: what was written is read as others will read it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Written:
    """What decoder.onnx takes besides the tokens, by name."""

    read: dict[str, np.ndarray]
    past: dict[str, np.ndarray]


class Graphs:
    """encoder.onnx and decoder.onnx of a folder."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self.encoder = onnxruntime.InferenceSession(folder / "encoder.onnx", options, providers)
        self.decoder = onnxruntime.InferenceSession(folder / "decoder.onnx", options, providers)
        self.memory = [each.name for each in self.encoder.get_outputs()]
        self.past = [each for each in self.decoder.get_inputs() if each.name.startswith("past_")]

    def start(self, source: np.ndarray) -> Written:
        """Read the sources, ended and padded; nothing is written yet."""
        memory: list[Any] = self.encoder.run(None, {"source": source})
        past = {
            each.name: np.zeros((len(source), each.shape[1], 0, each.shape[3]), np.float32)
            for each in self.past
        }
        return Written({"source": source, **dict(zip(self.memory, memory, strict=True))}, past)

    def step(self, tokens: np.ndarray, state: Written) -> tuple[np.ndarray, Written]:
        """Write one token a row; returns the scores of the next."""
        logits, *present = self.decoder.run(None, {"tokens": tokens, **state.read, **state.past})
        return logits, replace(state, past=dict(zip(state.past, present, strict=True)))
