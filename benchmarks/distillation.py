"""What distillation brings: a teacher, a student that learned from it, and the same student without it.

    python benchmarks/distillation.py TEACHER... PAIRS... -o FOLDER [--validation FILE] [--test FILE]
        [--time 30m] [--preset tiny] [--set SECTION.NAME=VALUE ...] [--keep-real 0.5] [--beam 4]
        [--engine auto] [--pairs 1000]

Trains FOLDER/distilled (heedful distill) and FOLDER/scratch (the same settings and budget, the real pairs),
both validated on the same real pairs; stopped at any point, the same command goes on. Printed: BLEU on real
pairs, with the beam and greedily, and sentences a second in turns in one run (the quickest of --rounds), as a
ratio to the teacher's with the beam. Several teachers are an ensemble. TEACHER should not have learned from
the test pairs: those held out of PAIRS are the same as of a teacher that was trained on the same PAIRS.
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
    options = _options()
    report = Reporter()
    distilled, scratch = options.output / "distilled", options.output / "scratch"
    asked = DistillOptions(
        tuple(options.paths),
        distilled,
        tuple(options.validation),
        options.beam,
        options.keep_real,
        build_run_settings(None, options.preset, options.time, options.set),
        options.engine,
        "cpu",
    )
    for line in distill_model(asked, report):
        print(line)
    _train_scratch(distilled, scratch, asked, report)
    test = list(read_cleaned_pairs(options.test or distilled / "distillation" / "held-out.tsv"))
    engines = {
        "teacher": load(asked.teachers, device="cpu", engine=options.engine),
        "distilled": load(distilled, device="cpu", engine=options.engine),
        "from scratch": load(scratch, device="cpu", engine=options.engine),
    }
    print(f"\n{len(test[: options.pairs]):,} real pairs")
    for name, engine in engines.items():
        print(f"{name}: {engine.name}")
    _print_table(engines, test[: options.pairs], options.beam, options.rounds)


def _train_scratch(distilled: Path, scratch: Path, asked: DistillOptions, report: Reporter) -> None:
    """The same student, from the real pairs alone."""
    if (scratch / "config.json").is_file():
        return
    if (scratch / "training" / "run.json").is_file():
        resume(scratch, report=report)
        return
    real = distilled / "distillation"
    languages = load(distilled, engine="pytorch").model_folder.config.languages
    train(
        real / "train.tsv",
        scratch,
        validation=real / "held-out.tsv",
        languages=languages,
        settings=asked.student_settings,
        report=report,
    )


def _print_table(engines: dict[str, Translator], test: Sequence[Pair], beam: int, rounds: int) -> None:
    ways = [(name, width) for width in sorted({beam, 1}, reverse=True) for name in engines]
    scores: dict[tuple[str, int], float] = {}
    speeds: dict[tuple[str, int], float] = {}
    for _ in range(rounds):
        for name, width in ways:
            engine = engines[name]
            search = engine.model_folder.config.generation.model_copy(update={"beam_size": width, "n_best": 1})
            scores[name, width], speed = measure_bleu_and_speed(engine, test, search)
            speeds[name, width] = max(speed, speeds.get((name, width), 0.0))
    print("\n| model | beam | BLEU | sentences/s | times the teacher's |\n|---|---:|---:|---:|---:|")
    for name, width in ways:
        ratio = speeds[name, width] / speeds["teacher", beam]
        print(f"| {name} | {width} | {scores[name, width]:.2f} | {speeds[name, width]:.1f} | {ratio:.2f} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--validation", nargs="*", type=Path, default=[])
    parser.add_argument("--test", type=Path, help="a cleaned .tsv of real pairs; else those held out")
    parser.add_argument("--time")
    parser.add_argument("--preset")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--keep-real", type=float, default=0.0)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--pairs", type=int, default=1000, help="to translate at most")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
