"""Decoding speed: PyTorch, CTranslate2 float32 and int8; CTranslate2 called directly; Hugging Face.

    python benchmarks/decoding_speed.py [MODEL] [FILE OF SENTENCES]

Without arguments: the demo model (demo/model, trained if missing) and sentences of its grammar. All engines run
in this process on one core, one after the other, in rounds; the ratios are the result. CPU seconds are those of
the process, so spinning threads count. Hugging Face's `generate` is included if `transformers` is installed and
the model can be converted to MarianMTModel (post-norm): the same weights, with sentences sorted by length.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from marian_model import build_marian_model

from heedful.data.collate import collate
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import translate_lines
from heedful.inference.ctranslate2_backend import CTranslate2Backend
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.tokenization.special_tokens import END, PAD

ROUNDS = 3
SINGLE_SENTENCES = 60
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
        _compare(f"batch, beam {beam}", new_batch_runs(engines, lines, GenerationConfig(beam_size=beam)))
    for beam in (1, 5):
        _compare(
            f"one at a time, beam {beam}",
            new_single_runs(engines, lines[:SINGLE_SENTENCES], GenerationConfig(beam_size=beam)),
        )


def new_batch_runs(
    engines: Sequence[Translator], lines: Sequence[str], search: GenerationConfig
) -> dict[str, Callable[[], object]]:
    runs: dict[str, Callable[[], object]] = {
        engine.name: lambda engine=engine: list(translate_lines(engine, lines, search, interactive=False))  # type: ignore[misc]
        for engine in engines
    }
    int8 = engines[-1]
    assert isinstance(int8.backend, CTranslate2Backend)
    tokenizer = int8.model_folder.tokenizer

    def translate_directly() -> list[str]:
        """Plain use of CTranslate2: encode all, one call, decode all."""
        names = [[str(i) for i in (*ids, END)] for ids in tokenizer.source.encode_batch(lines)]
        results = int8.backend.translator.translate_batch(
            names,
            beam_size=search.beam_size,
            length_penalty=search.length_penalty,
            max_batch_size=2048,
            batch_type="tokens",
            max_decoding_length=256,
            max_input_length=0,
        )
        return tokenizer.target.decode_batch([int(name) for name in result.hypotheses[0]] for result in results)

    runs["CTranslate2 int8, called directly"] = translate_directly
    return runs | new_hugging_face_runs(engines[0], lines, search, at_once=64)


def new_hugging_face_runs(
    engine: Translator, lines: Sequence[str], search: GenerationConfig, at_once: int
) -> dict[str, Callable[[], object]]:
    """The same weights in a MarianMTModel, with so many sentences per batch."""
    if find_spec("transformers") is None or (model := build_marian_model(engine.model_folder)) is None:
        return {}
    tokenizer = engine.model_folder.tokenizer

    @torch.inference_mode()
    def generate() -> list[str]:
        rows = sorted(tokenizer.source.encode_batch(lines), key=len)
        texts = []
        for start in range(0, len(rows), at_once):
            batch = collate(rows[start : start + at_once], [[]] * len(rows[start : start + at_once]))
            output = model.generate(
                input_ids=batch.source,
                attention_mask=(batch.source != PAD).long(),
                num_beams=search.beam_size,
                do_sample=False,
                length_penalty=search.length_penalty,
                max_new_tokens=batch.source.size(1) + 50,
            )
            texts += [tokenizer.target.decode(token for token in row if token > END) for row in output.tolist()]
        return texts

    return {"Hugging Face generate": generate}


def new_single_runs(
    engines: Sequence[Translator], lines: Sequence[str], search: GenerationConfig
) -> dict[str, Callable[[], object]]:
    runs: dict[str, Callable[[], object]] = {
        engine.name: lambda engine=engine: [engine.translate([line], search) for line in lines]  # type: ignore[misc]
        for engine in engines
    }
    return runs | new_hugging_face_runs(engines[0], lines, search, at_once=1)


def _compare(title: str, runs: dict[str, Callable[[], object]]) -> None:
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):  # all engines in every round, so that other load affects all
        for name, run in runs.items():
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
