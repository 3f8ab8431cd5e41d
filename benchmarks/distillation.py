"""Gain of distillation: a teacher, a distilled student, and the same student trained without a teacher.

    python benchmarks/distillation.py TEACHER... PAIRS... -o FOLDER [--validation FILE] [--test FILE]
        [--time 30m] [--preset tiny] [--set SECTION.NAME=VALUE ...] [--real-fraction 0.5] [--beam 4]
        [--engine auto] [--pairs 1000]

Trains FOLDER/distilled (heedful distill) and FOLDER/scratch (the same settings and budget, the real pairs),
both validated on the same real pairs; if stopped, the same command resumes. Printed: BLEU on real pairs, with
beam search and greedy, and sentences per second (the best of --rounds alternating rounds), as a ratio to the teacher
with beam search. Several teachers form an ensemble. TEACHER must not have been trained on the test pairs: the
validation pairs of PAIRS are the same as those of a teacher that was trained on the same PAIRS.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from heedful.data.cleaning import Pair, read_cleaned_pairs
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.progress import Reporter
from heedful.training.config import build_run_settings
from heedful.workflows.compare import measure_bleu_and_speed
from heedful.workflows.distill import DistillOptions, distill_model
from heedful.workflows.train import resume, train


def main() -> None:
    options = parse_options()
    report = Reporter()
    distilled, scratch = options.output / "distilled", options.output / "scratch"
    distill_options = DistillOptions(
        tuple(options.paths),
        distilled,
        tuple(options.validation),
        options.beam,
        options.real_fraction,
        build_run_settings(None, options.preset, options.time, options.set),
        options.engine,
        "cpu",
    )
    for line in distill_model(distill_options, report):
        print(line)
    _train_scratch(distilled, scratch, distill_options, report)
    test = list(read_cleaned_pairs(options.test or distilled / "distillation" / "validation.tsv"))
    engines = {
        "teacher": load(distill_options.teachers, device="cpu", engine=options.engine),
        "distilled": load(distilled, device="cpu", engine=options.engine),
        "from scratch": load(scratch, device="cpu", engine=options.engine),
    }
    print(f"\n{len(test[: options.pairs]):,} real pairs")
    for name, engine in engines.items():
        print(f"{name}: {engine.name}")
    _print_table(engines, test[: options.pairs], options.beam, options.rounds)


def _train_scratch(distilled: Path, scratch: Path, distill_options: DistillOptions, report: Reporter) -> None:
    """Train the same student on the real pairs only."""
    if (scratch / "config.json").is_file():
        return
    if (scratch / "training" / "run.json").is_file():
        resume(scratch, report=report)
        return
    data_folder = distilled / "distillation"
    languages = load(distilled, engine="pytorch").model_folder.config.languages
    train(
        data_folder / "train.tsv",
        scratch,
        validation=data_folder / "validation.tsv",
        languages=languages,
        settings=distill_options.settings,
        report=report,
    )


def _print_table(engines: dict[str, Translator], test: Sequence[Pair], beam: int, rounds: int) -> None:
    runs = [(name, beam_size) for beam_size in sorted({beam, 1}, reverse=True) for name in engines]
    scores: dict[tuple[str, int], float] = {}
    speeds: dict[tuple[str, int], float] = {}
    for _ in range(rounds):
        for name, beam_size in runs:
            engine = engines[name]
            search = engine.model_folder.config.generation.model_copy(update={"beam_size": beam_size, "n_best": 1})
            scores[name, beam_size], speed = measure_bleu_and_speed(engine, test, search)
            speeds[name, beam_size] = max(speed, speeds.get((name, beam_size), 0.0))
    print("\n| model | beam | BLEU | sentences/s | times the teacher |\n|---|---:|---:|---:|---:|")
    for name, beam_size in runs:
        ratio = speeds[name, beam_size] / speeds["teacher", beam]
        print(f"| {name} | {beam_size} | {scores[name, beam_size]:.2f} | {speeds[name, beam_size]:.1f} | {ratio:.2f} |")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--validation", nargs="*", type=Path, default=[])
    parser.add_argument("--test", type=Path, help="a cleaned .tsv of real pairs; default: the validation pairs")
    parser.add_argument("--time")
    parser.add_argument("--preset")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--real-fraction", type=float, default=0.0)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--pairs", type=int, default=1000, help="maximum number of test pairs")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
