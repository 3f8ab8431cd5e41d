"""``heedful distill``: a small model that learns from a large one's translations (Kim and Rush 2016).

STUDENT/distillation/   distillation.json (what was asked), train.tsv and held-out.tsv (real pairs),
                        taught.tsv (by the teacher), learned.tsv (with real pairs mixed in), report.json

Every file appears whole, so the same command goes on wherever it was stopped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from heedful.api import resume, train
from heedful.bundle import PARTS, Bundle
from heedful.choosing import chooser
from heedful.commands.distilled import described, examined, kept_rows
from heedful.commands.options import engine_name, search_settings
from heedful.commands.resuming import of_file
from heedful.commands.synthetic import Writer, check_writer, write_pairs
from heedful.config import Settings, merged
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, cleaned_pairs
from heedful.corpora.formats import check_inputs, read_pairs, write_tsv
from heedful.corpora.hashes import sentence_hash
from heedful.corpora.lines import STANDARD_INPUT, count_lines
from heedful.corpora.reading import Reading, ReadingConfig
from heedful.corpora.split import split, split_hash
from heedful.decoding.config import SearchConfig
from heedful.engines.ensemble import check_alike
from heedful.engines.segmented import SegmentedEngine
from heedful.errors import HeedfulError
from heedful.files import locked, read_json, write_json
from heedful.loading import load
from heedful.model.config import PLAIN, TREE_POSITIONS
from heedful.progress import Reporter, counted

STUDENT: Settings = {"preset": "tiny", "model": {"encoder_layers": 4, "decoder_layers": 1}}
"""Most of the time of translating goes into the decoder, so it is the encoder that is deep."""
DAMAGED = "remove the folder and give the command again"


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """The command line."""

    paths: tuple[Path, ...]
    """Model folders of teachers, then files of pairs."""
    output: Path
    validation: tuple[Path, ...] = ()
    beam: int = 4
    keep_real: float = 0.0
    settings: Settings | None = None
    engine: str = "auto"
    device: str = "auto"

    @property
    def teachers(self) -> tuple[Path, ...]:
        """What of the paths is a folder."""
        return tuple(path for path in self.paths if path.is_dir())

    @property
    def pairs(self) -> tuple[Path, ...]:
        """What of the paths is none."""
        return tuple(path for path in self.paths if not path.is_dir())

    @property
    def student(self) -> Settings:
        """The settings to train with."""
        return merged(STUDENT, self.settings or {})


def distill_command(options: DistillOptions, report: Reporter) -> Iterator[str]:
    """Do all that is still to do; yields lines to print."""
    _check(options)
    work = _Work(options, report)
    work.check_folder()
    with locked(work.folder):
        yield from _distilled(work, options, report)


def _distilled(work: "_Work", options: DistillOptions, report: Reporter) -> Iterator[str]:
    work.begin()
    if not (options.output / "config.json").is_file():
        work.train()
    rows = kept_rows(work.folder)
    if rows is None:
        rows = examined(
            options.output,
            work.teacher,
            work.search,
            list(cleaned_pairs(work.folder / "held-out.tsv")),
            lambda: load(options.output, device=options.device, engine=engine_name(options.engine)),
            report,
        )
    yield from described(rows)
    yield f'model written to {options.output}; try it: heedful translate {options.output} "a sentence"'


class _Work:
    """One distillation and its folder."""

    def __init__(self, options: DistillOptions, report: Reporter) -> None:
        self.options, self.report = options, report
        self.folder = options.output / "distillation"
        self.config = Bundle.open(options.teachers[0]).config

    @cached_property
    def teacher(self) -> SegmentedEngine:
        """Loaded when it is needed."""
        options = self.options
        engine = load(options.teachers, device=options.device, engine=engine_name(options.engine))
        check_writer(engine)
        return engine

    @property
    def search(self) -> SearchConfig:
        """How the teacher translates."""
        return search_settings(self.config.search, {"beam": self.options.beam, "n_best": 1}, ())

    @property
    def languages(self) -> tuple[str, str] | None:
        """The student's are the teacher's."""
        return self.config.languages

    def begin(self) -> None:
        """Write down what is asked, or see that it is the same as before."""
        options, path = self.options, self.folder / "distillation.json"
        asked = {
            "teachers": [of_file(teacher / name) for teacher in options.teachers for name in PARTS],
            "pairs": [of_file(pairs) for pairs in options.pairs],
            "validation pairs": [of_file(pairs) for pairs in options.validation],
            "beam": options.beam,
            "share of real pairs": options.keep_real,
            "settings": options.student,
        }
        if path.is_file():
            known = read_json(path, DAMAGED)
            other = [name for name, value in asked.items() if known.get(name) != value]
            if other:
                raise HeedfulError(
                    f"{options.output} holds another distillation; what differs: {', '.join(other)}",
                    hint="name another folder (-o), or give the command as it was",
                )
        else:
            self.check_folder()
            write_json(path, asked)

    def check_folder(self) -> None:
        """An error if something is there that is no distillation's."""
        output = self.options.output
        if (self.folder / "distillation.json").is_file() or not output.exists():
            return
        if not output.is_dir() or any(path != self.folder for path in output.iterdir()):
            raise HeedfulError(f"{output} exists already", hint="name another folder (-o)")

    def train(self) -> None:
        """The student: from its last checkpoint, if it has begun."""
        folder = self.options.output
        if (folder / "training" / "run.json").is_file():
            resume(folder, report=self.report)
            return
        held_out = self.folder / "held-out.tsv"
        if not held_out.is_file():
            self._divide()
        train(
            self._lessons(),
            folder,
            validation=held_out,
            languages=self.languages,
            settings=self.options.student,
            report=self.report,
        )

    def _divide(self) -> None:
        """The real pairs: those to learn from, and those to be examined on, which the teacher never sees."""
        settings = self.options.student
        cleaning = CleaningConfig.checked(settings.get("cleaning", {}))
        everything, counts = self.folder / "pairs.tsv", CleaningReport()
        write_tsv(self._cleaned(self.options.pairs, cleaning, counts), everything)
        for line in counts.lines():
            self.report.say(line)
        if self.options.validation:
            held_out = list(self._cleaned(self.options.validation, cleaning, CleaningReport()))
            known = {split_hash(pair.source) for pair in held_out}
            every = cleaned_pairs(everything)
            training: Iterator[Pair] = (pair for pair in every if split_hash(pair.source) not in known)
        else:
            size = settings.get("training", {}).get("held_out")
            parts = split(lambda: cleaned_pairs(everything), size or None)
            held_out, training = parts.held_out, parts.training()
        count = write_tsv(training, self.folder / "train.tsv")
        if not (count and held_out):
            missing = "to learn from" if held_out else "to be examined on"
            raise HeedfulError(f"there are no pairs {missing}", hint="give more pairs, or --validation FILES")
        self.report.say(f"{counted(count, 'pair')} to learn from, {len(held_out):,} to be examined on")
        write_tsv(held_out, self.folder / "held-out.tsv")
        everything.unlink()

    def _cleaned(
        self, paths: Sequence[Path], cleaning: CleaningConfig, counts: CleaningReport
    ) -> Iterator[Pair]:
        told = ReadingConfig.checked(self.options.student.get("reading", {}))
        return clean(read_pairs(paths, Reading(self.languages, told)), cleaning, counts)

    def _lessons(self) -> Path:
        """What the student learns from."""
        taught, real = self.folder / "taught.tsv", self.folder / "train.tsv"
        if not taught.is_file():
            self.report.say(f"the teacher translates; engine: {self.teacher.name}")
            writer = Writer(self.teacher, self.options.teachers, self.search, source_side=False)
            sources = (pair.source for pair in cleaned_pairs(real))
            for line in write_pairs(writer, sources, of_file(real), taught, self.report, count_lines(real)):
                self.report.say(line)
        if not self.options.keep_real:
            return taught
        learned = self.folder / "learned.tsv"
        most = int(self.options.keep_real * 2**64)
        kept = (pair for pair in cleaned_pairs(real) if sentence_hash("\0".join(pair)) < most)
        write_tsv(chain(cleaned_pairs(taught), kept), learned)
        return learned


def _check(options: DistillOptions) -> None:
    """What can be known to be wrong before hours of work."""
    if not options.teachers:
        given = options.paths[0] if options.paths else "nothing"
        raise HeedfulError(
            f"no teacher: {given} is no model folder", hint="heedful distill TEACHER pairs.tsv"
        )
    if STANDARD_INPUT in (*options.pairs, *options.validation):
        raise HeedfulError("standard input cannot be read again", hint="name a file of pairs")
    if not 0 <= options.keep_real <= 1:
        raise HeedfulError(
            f"{options.keep_real:g} is no share of the real pairs", hint="between 0 and 1, such as 0.5"
        )
    check_inputs(options.pairs)
    if options.validation:
        check_inputs(options.validation)
    bundles = [Bundle.open(folder) for folder in options.teachers]
    for bundle in bundles:
        bundle.check_translates()
    check_alike(bundles, options.teachers)
    engine_name(options.engine)
    student = options.student
    chooser(student, student)
    model = student.get("model", {})
    if model.get("family") in PLAIN or model.get("positions") in TREE_POSITIONS:
        raise HeedfulError(
            "a student learns to translate text without trees", hint="leave out these settings"
        )
