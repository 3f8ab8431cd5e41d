"""Decoding speed: PyTorch, CTranslate2 float32 and int8; CTranslate2 called directly; Hugging Face.

    python benchmarks/decoding_speed.py [MODEL] [FILE OF SENTENCES]

Without arguments: the demo model (demo/model, trained if need be) and sentences of its grammar. All sides run
in this process on one core, one after the other, in rounds; what counts are the ratios. CPU seconds are
of the whole process, so threads that wait by spinning count. Hugging Face's `generate` takes part if
`transformers` is installed and the model has a twin there (post-norm): the same weights, sorted by length.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from marian_twin import marian_twin

from heedful.data.collate import collate
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import translate_lines
from heedful.inference.ctranslate2_backend import CTranslate2Backend
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.tokenization.special_tokens import END, PAD

ROUNDS = 3
SINGLE = 60
"""Sentences translated one at a time."""


def main() -> None:
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo/model")
    if not (model / "config.json").exists():
        from heedful.progress import Reporter
        from heedful.workflows.demo import run_demo

        list(run_demo(model.parent, retrain=False, guided=False, report=Reporter()))
    lines = (
        Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
        if len(sys.argv) > 2
        else [pair.source for pair in generate_pairs(1000, seed=11)]
    )
    torch.set_num_threads(1)
    engines = [load(model, engine=name, workers=1) for name in ("pytorch", "ctranslate2", "ctranslate2-int8")]
    print(f"{model}, {len(lines):,} sentences, one core; best of {ROUNDS} rounds")
    for beam in (1, 5):
        _compare(f"batch, beam {beam}", _batch_sides(engines, lines, GenerationConfig(beam_size=beam)))
    for beam in (1, 5):
        _compare(
            f"one at a time, beam {beam}", _single_sides(engines, lines[:SINGLE], GenerationConfig(beam_size=beam))
        )


def _batch_sides(
    engines: Sequence[Translator], lines: Sequence[str], search: GenerationConfig
) -> dict[str, Callable[[], object]]:
    sides: dict[str, Callable[[], object]] = {
        engine.name: lambda engine=engine: list(translate_lines(engine, lines, search, interactive=False))  # type: ignore[misc]
        for engine in engines
    }
    quickest = engines[-1]
    assert isinstance(quickest.backend, CTranslate2Backend)
    tokenizer = quickest.model_folder.tokenizer

    def directly() -> list[str]:
        """What a person who knows CTranslate2 would write: encode all, one call, decode all."""
        names = [[str(i) for i in (*ids, END)] for ids in tokenizer.source.encode_batch(lines)]
        results = quickest.translator.translate_batch(
            names,
            beam_size=search.beam_size,
            length_penalty=search.length_penalty,
            max_batch_size=2048,
            batch_type="tokens",
            max_decoding_length=256,
            max_input_length=0,
        )
        return tokenizer.target.decode_batch([int(name) for name in result.hypotheses[0]] for result in results)

    sides["CTranslate2 int8, called directly"] = directly
    return sides | _hugging_face(engines[0], lines, search, at_once=64)


def _hugging_face(
    engine: Translator, lines: Sequence[str], search: GenerationConfig, at_once: int
) -> dict[str, Callable[[], object]]:
    """The same weights in a MarianMTModel, so many sentences at once."""
    if find_spec("transformers") is None or (twin := marian_twin(engine.model_folder)) is None:
        return {}
    tokenizer = engine.model_folder.tokenizer

    @torch.inference_mode()
    def generated() -> list[str]:
        rows = sorted(tokenizer.source.encode_batch(lines), key=len)
        found = []
        for first in range(0, len(rows), at_once):
            batch = collate(rows[first : first + at_once], [[]] * len(rows[first : first + at_once]))
            written = twin.generate(
                input_ids=batch.source,
                attention_mask=(batch.source != PAD).long(),
                num_beams=search.beam_size,
                do_sample=False,
                length_penalty=search.length_penalty,
                max_new_tokens=batch.source.size(1) + 50,
            )
            found += [tokenizer.target.decode(token for token in row if token > END) for row in written.tolist()]
        return found

    return {"Hugging Face generate": generated}


def _single_sides(
    engines: Sequence[Translator], lines: Sequence[str], search: GenerationConfig
) -> dict[str, Callable[[], object]]:
    sides: dict[str, Callable[[], object]] = {
        engine.name: lambda engine=engine: [engine.translate([line], search) for line in lines]  # type: ignore[misc]
        for engine in engines
    }
    return sides | _hugging_face(engines[0], lines, search, at_once=1)


def _compare(title: str, sides: dict[str, Callable[[], object]]) -> None:
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):  # rounds of all sides, so that a busy minute hits every side
        for name, run in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            spent = (time.process_time() - cpu, time.perf_counter() - wall)
            best[name] = min(best.get(name, spent), spent)
    first = next(iter(best.values()))
    print(f"\n{title}")
    for name, (cpu, wall) in best.items():
        print(f"  {name:36}  CPU {cpu:7.2f} s  wall {wall:7.2f} s  {first[0] / cpu:6.2f} times the first")


if __name__ == "__main__":
    main()
