"""``heedful distill``: sequence-level knowledge distillation (Kim and Rush 2016).

    STUDENT/distillation/   distillation.json (the request), train.tsv and validation.tsv (real pairs),
                            teacher.tsv (the teacher's translations), student_train.tsv (with real pairs mixed
                            in), report.json

Every file is written atomically, so the same command resumes an interrupted distillation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from pydantic import TypeAdapter

from heedful.config import Settings, merge_settings
from heedful.data.cleaning import CleaningReport, Pair, clean_pairs, read_cleaned_pairs, sentence_hash
from heedful.data.config import CleaningConfig, ReadingConfig
from heedful.data.formats.base import ReadOptions
from heedful.data.formats.lines import STANDARD_INPUT, count_lines
from heedful.data.reader import check_inputs, read_pairs, write_tsv
from heedful.data.splits import split_hash, split_pairs
from heedful.errors import HeedfulError
from heedful.files import lock_folder, read_json, write_json, write_text
from heedful.generation.config import build_generation_config
from heedful.inference.bulk import file_fingerprint
from heedful.inference.loading import load, parse_engine_name
from heedful.inference.pytorch_backend import EnsembleBackend, check_compatible
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder, list_model_files
from heedful.models.config import DEPENDENCY_POSITIONS, LANGUAGE_MODEL_ARCHITECTURES
from heedful.progress import Reporter, format_count
from heedful.training.run import make_config_chooser
from heedful.workflows.back_translate import SyntheticWriter, check_can_synthesize, write_synthetic_pairs
from heedful.workflows.compare import measure_bleu_and_speed
from heedful.workflows.train import resume, train

MAX_TEST_PAIRS = 1000
"""Validation pairs that teacher and student translate."""

TIMED_PAIRS, TIMING_ROUNDS = 200, 3
"""Pairs translated for the speed measurement, and how often; the fastest round counts."""

CARD_HEADING = "## Distillation"

CARD_TEXT = (
    "Trained on the translations of a teacher by `heedful distill`. All scores are on real pairs; "
    "speeds are from one run on one machine."
)


@dataclass(slots=True)
class DistillationRow:
    """BLEU and speed of one model with one beam size."""

    name: str
    beam: int
    bleu: float
    sentences_per_second: float
    parameters: int
    engine: str
    pairs: int


_ROWS_ADAPTER = TypeAdapter(list[DistillationRow])


def load_rows(folder: Path) -> list[DistillationRow] | None:
    """The rows of an earlier comparison, or None."""
    path = folder / "report.json"
    if not path.is_file():
        return None
    try:
        return _ROWS_ADAPTER.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise HeedfulError(f"{path} is corrupt: {error}", hint="delete it to measure again") from None


def format_rows(rows: Sequence[DistillationRow]) -> Iterator[str]:
    """One line per row, and the student's speed-up."""
    yield f"on {rows[0].pairs:,} real validation pairs:"
    for row in rows:
        speed = f"{row.sentences_per_second:8.1f} sentences/s"
        size = f"{row.parameters:,} parameters"
        yield f"{row.name}  beam size {row.beam}  BLEU {row.bleu:5.2f}  {speed}  {size}  {row.engine}"
    for row in rows[1:]:
        ratio = row.sentences_per_second / rows[0].sentences_per_second
        yield f"with beam size {row.beam} the student is {ratio:.1f} times as fast as its teacher"


STUDENT_SETTINGS: Settings = {"preset": "tiny", "model": {"encoder_layers": 4, "decoder_layers": 1}}
"""A deep encoder and a shallow decoder: decoding dominates translation time."""

CORRUPT_HINT = "delete the folder and run the command again"


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """What ``heedful distill`` trains, and from which teachers."""

    paths: tuple[Path, ...]
    """Model folders of teachers, then files of pairs."""
    output: Path
    validation: tuple[Path, ...] = ()
    beam_size: int = 4
    real_fraction: float = 0.0
    settings: Settings | None = None
    engine: str = "auto"
    device: str = "auto"

    @property
    def teachers(self) -> tuple[Path, ...]:
        """The paths that are folders."""
        return tuple(path for path in self.paths if path.is_dir())

    @property
    def pairs(self) -> tuple[Path, ...]:
        """The paths that are files."""
        return tuple(path for path in self.paths if not path.is_dir())

    @property
    def student_settings(self) -> Settings:
        """The training settings of the student."""
        return merge_settings(STUDENT_SETTINGS, self.settings or {})


def distill_model(options: DistillOptions, report: Reporter) -> Iterator[str]:
    """Run or resume a distillation; yields lines to print."""
    _check_options(options)
    distillation = _Distillation(options, report)
    distillation.check_folder()
    with lock_folder(distillation.folder):
        distillation.write_or_check_request()
        if not (options.output / "config.json").is_file():
            distillation.train()
        yield from format_rows(load_rows(distillation.folder) or distillation.compare_with_teacher())
        yield f'model written to {options.output}; try it: heedful translate {options.output} "a sentence"'


class _Distillation:
    """One distillation and its folder."""

    def __init__(self, options: DistillOptions, report: Reporter) -> None:
        self.options, self.report = options, report
        self.folder = options.output / "distillation"
        config = ModelFolder.open(options.teachers[0]).config
        self.languages = config.languages
        self.generation_config = build_generation_config(
            config.generation, {"beam_size": options.beam_size, "n_best": 1}, ()
        )

    @cached_property
    def teacher(self) -> Translator:
        """The teacher, loaded on first use."""
        engine = self._load(self.options.teachers)
        check_can_synthesize(engine)
        return engine

    def _load(self, folders: Path | tuple[Path, ...]) -> Translator:
        return load(folders, device=self.options.device, engine=parse_engine_name(self.options.engine))

    def write_or_check_request(self) -> None:
        """Store the request, or check that it equals the stored one."""
        options, path = self.options, self.folder / "distillation.json"
        request = {
            "teachers": [file_fingerprint(path) for teacher in options.teachers for path in list_model_files(teacher)],
            "pairs": [file_fingerprint(pairs) for pairs in options.pairs],
            "validation": [file_fingerprint(pairs) for pairs in options.validation],
            "beam_size": options.beam_size,
            "real_fraction": options.real_fraction,
            "settings": options.student_settings,
        }
        if path.is_file():
            stored = read_json(path, CORRUPT_HINT)
            differing = [name for name, value in request.items() if stored.get(name) != value]
            if differing:
                raise HeedfulError(
                    f"{options.output} holds another distillation, with different {', '.join(differing)}",
                    hint="choose another folder (-o), or use the original options",
                )
        else:
            self.check_folder()
            write_json(path, request)

    def check_folder(self) -> None:
        """Raise an error if the output folder holds anything else."""
        output = self.options.output
        if (self.folder / "distillation.json").is_file() or not output.exists():
            return
        if not output.is_dir() or any(path != self.folder for path in output.iterdir()):
            raise HeedfulError(f"{output} already exists", hint="choose another folder (-o)")

    def train(self) -> None:
        """Train the student, or resume its training."""
        folder = self.options.output
        if (folder / "training" / "run.json").is_file():
            resume(folder, report=self.report)
            return
        validation_path = self.folder / "validation.tsv"
        if not validation_path.is_file():
            self._split_pairs()
        train(
            self._build_training_file(),
            folder,
            validation=validation_path,
            languages=self.languages,
            settings=self.options.student_settings,
            report=self.report,
        )

    def _split_pairs(self) -> None:
        """Split the real pairs into training and validation pairs; the teacher translates only the former."""
        settings = self.options.student_settings
        cleaning = CleaningConfig.from_settings(settings.get("cleaning", {}))
        reading = ReadOptions(self.languages, ReadingConfig.from_settings(settings.get("reading", {})))
        all_pairs_path, cleaning_report = self.folder / "pairs.tsv", CleaningReport()
        write_tsv(clean_pairs(read_pairs(self.options.pairs, reading), cleaning, cleaning_report), all_pairs_path)
        for line in cleaning_report.summary_lines():
            self.report.info(line)
        all_pairs = read_cleaned_pairs(all_pairs_path)
        training_pairs: Iterator[Pair]
        if self.options.validation:
            records = read_pairs(self.options.validation, reading)
            validation_pairs = list(clean_pairs(records, cleaning, CleaningReport()))
            validation_hashes = {split_hash(pair.source) for pair in validation_pairs}
            training_pairs = (pair for pair in all_pairs if split_hash(pair.source) not in validation_hashes)
        else:
            size = settings.get("training", {}).get("validation_size")
            partition = split_pairs(lambda: read_cleaned_pairs(all_pairs_path), size or None)
            validation_pairs = partition.validation
            training_pairs = filter(partition.is_training_pair, all_pairs)
        count = write_tsv(training_pairs, self.folder / "train.tsv")
        if not (count and validation_pairs):
            purpose = "to train on" if validation_pairs else "to validate on"
            raise HeedfulError(f"there are no pairs {purpose}", hint="add pairs, or use --validation FILES")
        self.report.info(f"{format_count(count, 'pair')} to train on, {len(validation_pairs):,} to validate on")
        write_tsv(validation_pairs, self.folder / "validation.tsv")
        all_pairs_path.unlink()

    def _build_training_file(self) -> Path:
        """The training file of the student: the teacher's translations, plus real pairs."""
        teacher_path, real_path = self.folder / "teacher.tsv", self.folder / "train.tsv"
        if not teacher_path.is_file():
            self.report.info(f"translating with the teacher; engine: {self.teacher.name}")
            writer = SyntheticWriter(self.teacher, self.options.teachers, self.generation_config, source_side=False)
            sources = (pair.source for pair in read_cleaned_pairs(real_path))
            for line in write_synthetic_pairs(
                writer, sources, file_fingerprint(real_path), teacher_path, self.report, count_lines(real_path)
            ):
                self.report.info(line)
        if not self.options.real_fraction:
            return teacher_path
        mixed_path = self.folder / "student_train.tsv"
        hash_limit = int(self.options.real_fraction * 2**64)
        selected = (pair for pair in read_cleaned_pairs(real_path) if sentence_hash("\0".join(pair)) < hash_limit)
        write_tsv(chain(read_cleaned_pairs(teacher_path), selected), mixed_path)
        return mixed_path

    def compare_with_teacher(self) -> list[DistillationRow]:
        """Translate the validation pairs with both; write the result to the student's folder and model card."""
        self.report.info("comparing teacher and student")
        student, config = self._load(self.options.output), self.generation_config
        setups = [("teacher", self.teacher, config), ("student", student, config)]
        if config.beam_size > 1:
            setups.append(("student", student, config.model_copy(update={"beam_size": 1})))
        pairs = list(islice(read_cleaned_pairs(self.folder / "validation.tsv"), MAX_TEST_PAIRS))
        rows = []
        for name, engine, engine_config in setups:
            bleu, speed = measure_bleu_and_speed(engine, pairs, engine_config)
            models = [engine.model_folder.translation_model]
            if isinstance(engine.backend, EnsembleBackend):
                models = list(engine.backend.models)
            size = sum(model.parameter_count() for model in models)
            rows.append(DistillationRow(name, engine_config.beam_size, bleu, speed, size, engine.name, len(pairs)))
        for _ in range(TIMING_ROUNDS):  # alternating, so that a busy machine slows all of them
            for row, setup in zip(rows, setups, strict=True):
                speed = measure_bleu_and_speed(setup[1], pairs[:TIMED_PAIRS], setup[2])[1]
                row.sentences_per_second = max(row.sentences_per_second, speed)
        card = self.options.output / "README.md"
        text = card.read_text(encoding="utf-8").split(f"\n{CARD_HEADING}\n")[0]
        table = "\n".join(f"- {line}" for line in format_rows(rows))
        write_text(card, f"{text}\n{CARD_HEADING}\n\n{CARD_TEXT}\n\n{table}\n")
        write_json(self.folder / "report.json", [asdict(row) for row in rows])
        return rows


def _check_options(options: DistillOptions) -> None:
    """Raise an error for what can be checked before hours of work."""
    if not options.teachers:
        first_path = options.paths[0] if options.paths else "nothing"
        raise HeedfulError(f"no teacher: {first_path} is not a model folder", hint="heedful distill TEACHER pairs.tsv")
    if STANDARD_INPUT in (*options.pairs, *options.validation):
        raise HeedfulError("standard input cannot be read twice", hint="use a file of pairs")
    if not 0 <= options.real_fraction <= 1:
        raise HeedfulError(
            f"--real-fraction {options.real_fraction:g} is out of range", hint="use a number from 0 to 1, such as 0.5"
        )
    check_inputs(options.pairs)
    if options.validation:
        check_inputs(options.validation)
    model_folders = [ModelFolder.open(folder) for folder in options.teachers]
    for model_folder in model_folders:
        model_folder.check_translates()
    check_compatible(model_folders, options.teachers)
    parse_engine_name(options.engine)
    student_settings = options.student_settings
    make_config_chooser(student_settings, student_settings)
    model = student_settings.get("model", {})
    if model.get("architecture") in LANGUAGE_MODEL_ARCHITECTURES or model.get("positions") in DEPENDENCY_POSITIONS:
        raise HeedfulError("a student must be a translation model without dependency trees", hint="omit these settings")
