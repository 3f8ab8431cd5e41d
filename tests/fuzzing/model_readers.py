"""Readers of tokenizers, weights, checkpoints, token datasets, run folders, foreign models and traces."""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from hypothesis.strategies import SearchStrategy

from heedful.config import Config
from heedful.convert.ctranslate2.cache import is_valid_conversion
from heedful.convert.marian.importer import import_marian
from heedful.data.collate import collate
from heedful.data.dataset import TokenDataset, TokenDatasetWriter
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import BATCH_LINES, open_resumable
from heedful.inference.ctranslate2_backend import CTranslate2Backend
from heedful.inference.translator import Translator
from heedful.interpret.trace import load_trace
from heedful.model_folder import ModelFolder
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.server.routes.trace import _read_training
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.training.checkpoint import (
    average_weights,
    list_checkpoints,
    list_saved_weights,
    load_checkpoint,
    load_snapshot,
)
from heedful.training.config import TrainingConfig
from heedful.training.metrics_log import read_metrics, truncate_metrics
from heedful.training.preparation import load_prepared
from heedful.training.run import read_compute_config, read_run_description
from heedful.training.step import new_optimizer, run_update
from heedful.web.notebook import show
from heedful.web.standalone import PageView, build_url_fragment, pack_trace, render_standalone_page
from heedful.workflows.distill import load_rows
from tests.fuzzing import valid_files
from tests.fuzzing.mutations import (
    binary_files,
    corrupt_files,
    json_files,
    safetensors_files,
    safetensors_metadata,
    text_files,
    zip_files,
)
from tests.fuzzing.outcomes import Reader


class _SilentReporter(Reporter):
    """Prints nothing, not even warnings."""

    def warning(self, text: str) -> None:
        return


SILENT = _SilentReporter(quiet=True)
SEARCH = GenerationConfig(beam_size=2, max_length_offset=4)
TEXTS = ("The dog was too tired.", "", "été \U0001f600 \u202e\0 x", ">>fr<< a")
CHECKPOINT = "training/checkpoints/000000004"
DATA = "training/data"
DATASET = f"{DATA}/train"
JSON_LINE, TSV_LINE = '{{"line": {number}, "text": "a"}}\n', "{number}\ttext\n"
LAST_METRICS = b'{"update": 2, "epoch": 0.1, "seconds": 0.5, "loss": 3.5, "validation_loss": 3.4}\n'


def _check_tokenizer(tokenizer: PairTokenizer) -> None:
    for side in (tokenizer.source, tokenizer.target):
        for text in TEXTS:
            ids = side.encode(text)
            assert all(0 <= token_id < side.vocab_size for token_id in ids)
            side.decode(ids).encode()
            side.word_ids(ids)
            side.char_spans(ids)


def _read_tokenizer(folder: Path) -> None:
    _check_tokenizer(PairTokenizer.load(folder))


def _check_model(model_folder: ModelFolder) -> None:
    """It translates, whatever its weights are."""
    _check_tokenizer(model_folder.tokenizer)
    translations = Translator.with_pytorch(model_folder).translate([TEXTS[0]], SEARCH)
    translations[0].text.encode()


def _read_model(folder: Path) -> None:
    _check_model(ModelFolder.load(folder))


def _read_ctranslate2(folder: Path) -> None:
    conversion = folder / "conversion"
    if is_valid_conversion(conversion):
        backend = CTranslate2Backend(ModelFolder.open(folder), conversion, precision="float32", workers=1)
        Translator(backend).translate([TEXTS[0]], SEARCH)


def _read_marian(folder: Path) -> None:
    _check_model(import_marian(folder, allow_bin=True))


def _read_marian_zip(folder: Path) -> None:
    import_marian(folder / "model.zip")


def _read_checkpoint(folder: Path) -> None:
    """Load a checkpoint and train one more update."""
    model_folder = ModelFolder.open(folder)
    config = TrainingConfig(precision="float32")
    model = new_model(model_folder.config.model)
    optimizer = new_optimizer(model, config)
    [*_, last] = list_checkpoints(folder / "training" / "checkpoints")
    state = load_checkpoint(last, model, optimizer)
    assert isinstance(state.update, int)
    average_weights(list_checkpoints(folder / "training" / "checkpoints")[-2:])
    run_update(model, optimizer, [collate([[5, 6]], [[7]])], config, 0.001)


def _read_snapshot(folder: Path) -> None:
    model_folder = ModelFolder.load(folder)
    load_snapshot(model_folder, folder, next(iter(list_saved_weights(folder))))


def _write_dataset(folder: Path) -> None:
    with TokenDatasetWriter(folder / "dataset", 300, 300) as writer:
        for source, target in (([1, 2, 3], [4]), ([], [5, 6]), ([299], [7, 8, 9, 10])):
            writer.add(source, target)


def _read_dataset(folder: Path) -> None:
    dataset = TokenDataset.open(folder / "dataset")
    for number in range(len(dataset)):
        source, target = dataset.source(number), dataset.target(number)
        assert len(source) == dataset.source_lengths[number]
        assert len(target) == dataset.target_lengths[number]
    for lengths, summary in (
        (dataset.source_lengths, dataset.summary.source),
        (dataset.target_lengths, dataset.summary.target),
    ):
        assert int(np.sum(lengths)) == summary.tokens
        assert int(max(lengths, default=0)) <= summary.max_length


def _read_run(folder: Path) -> None:
    description = read_run_description(folder)
    for source in (*description.inputs.sources, *description.inputs.validation_sources):
        source.name.encode("utf-8", "surrogatepass")
    assert description.threads >= 1


def _read_prepared(folder: Path) -> None:
    corpus = load_prepared(folder / DATA)
    assert isinstance(corpus.model_config, Config)
    assert corpus.mixture is not None
    assert len(corpus.mixture.indices(1, 0)) <= 10 * len(corpus.dataset)
    for line in corpus.summary:
        line.encode("utf-8", "replace")


def _read_compute_config(folder: Path) -> None:
    read_compute_config(folder / "training" / "autotune.json")


def _read_metrics(folder: Path) -> None:
    path = folder / "training" / "metrics.jsonl"
    json.dumps(_read_training(folder), allow_nan=False)
    metrics = read_metrics(path)
    assert metrics
    truncate_metrics(path, 3)


def _read_trace(folder: Path) -> None:
    """Read a trace and render the page with it."""
    path = folder / "trace.safetensors"
    trace = load_trace(path)
    show(path)._repr_html_()
    url = build_url_fragment(PageView(), trace.manifest)
    render_standalone_page(pack_trace(trace, url), url).encode()


def _read_bulk(name: str, line: str) -> Callable[[Path], None]:
    """Resume a partial translation; the other file is written again, since the last run has moved it."""
    format_name = "jsonl" if name.endswith(".jsonl") else "tsv"

    def read(folder: Path) -> None:
        for file, content in _bulk_files(name, line).items():
            if not (folder / file).exists():
                (folder / file).write_bytes(content)
        with open_resumable(folder / name, {"model": "m"}, format_name, SILENT) as (_, line_count):
            assert line_count >= 0

    return read


def _bulk_files(name: str, line: str) -> dict[str, bytes]:
    text = "".join(line.format(number=number) for number in range(1, 2 * BATCH_LINES))
    return {f"{name}.partial": text.encode(), f"{name}.partial.json": b'{"model": "m"}'}


def _bulk(name: str, file: str, line: str, *fragments: bytes) -> Reader:
    output = file.partition(".partial")[0]

    def prepare(folder: Path) -> None:
        for file_name, content in _bulk_files(output, line).items():
            (folder / file_name).write_bytes(content)

    inputs = (lambda seeds: text_files(seeds, fragments)) if fragments else json_files
    return Reader(f"bulk: {name}", file, prepare, _read_bulk(output, line), inputs)


def _read_rows(folder: Path) -> None:
    for row in load_rows(folder) or []:
        assert isinstance(row.name, str)


def _write_rows(folder: Path) -> None:
    row = {
        "name": "teacher",
        "beam": 4,
        "bleu": 3.5,
        "sentences_per_second": 2.0,
        "parameters": 5,
        "engine": "e",
        "pairs": 9,
    }
    (folder / "report.json").write_text(json.dumps([row, row]))


def _write_tokenizer(model_type: str) -> Callable[[Path], None]:
    return lambda folder: valid_files.tokenizer(model_type).save(folder)


def _zip_members(folder: Path) -> list[tuple[str, bytes]]:
    valid_files.write_marian_folder(folder / "unpacked")
    return [(f"m/{path.name}", path.read_bytes()) for path in sorted((folder / "unpacked").iterdir())]


def _write_zip(folder: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in _zip_members(folder):
            archive.writestr(name, data)
    (folder / "model.zip").write_bytes(file.getvalue())


def _zip_inputs(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    with zipfile.ZipFile(io.BytesIO(seeds[0])) as zip_file:
        members = [(name, zip_file.read(name)) for name in zip_file.namelist()]
    return zip_files(members) | corrupt_files(seeds)


def _metrics_inputs(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Corrupt JSON lines."""
    first = [seed.splitlines()[0] for seed in seeds]
    first_lines = json_files(first)
    return text_files(seeds, [b"{}\n", b"[]\n", b'{"update": "a"}\n', b'{"update": NaN}\n']) | first_lines.map(
        lambda line: LAST_METRICS + line + b"\n" + LAST_METRICS
    )


def _folder_readers(name: str, prepare: Callable[[Path], None], read: Callable[[Path], None]) -> Callable[..., Reader]:
    """Creates the readers of several files in one folder."""

    def new(file: str, inputs: Callable[[Sequence[bytes]], SearchStrategy[bytes]], slow: int = 1) -> Reader:
        return Reader(f"{name}: {Path(file).name}", file, prepare, read, inputs, slow=slow)

    return new


_model = _folder_readers("model", valid_files.write_model_folder, _read_model)
_marian = _folder_readers("MarianMT", valid_files.write_marian_folder, _read_marian)
_ctranslate2 = _folder_readers("CTranslate2", valid_files.write_ctranslate2_folder, _read_ctranslate2)
_imported = _folder_readers("imported model", valid_files.write_imported_folder, _read_model)
_checkpoint = _folder_readers("checkpoint", valid_files.write_training_folder, _read_checkpoint)
_dataset = _folder_readers("token dataset", _write_dataset, _read_dataset)

MODELS = [
    *(
        Reader(f"tokenizer: {kind}", "tokenizer.json", _write_tokenizer(kind), _read_tokenizer, json_files, slow=2)
        for kind in ("bpe", "unigram", "word", "character")
    ),
    _model("config.json", json_files, 4),
    _model("tokenizer.json", json_files, 4),
    _model("weights.safetensors", safetensors_files, 4),
    _marian("config.json", json_files, 4),
    _marian("generation_config.json", json_files, 4),
    _marian("tokenizer_config.json", json_files, 4),
    _marian("vocab.json", json_files, 4),
    _marian("source.spm", binary_files, 4),
    _marian("model.safetensors", safetensors_files, 4),
    Reader("MarianMT: zip", "model.zip", _write_zip, _read_marian_zip, _zip_inputs, slow=8),
    Reader(
        "MarianMT: pytorch_model.bin",
        "pytorch_model.bin",
        valid_files.write_marian_bin_folder,
        _read_marian,
        binary_files,
        slow=8,
    ),
    _imported("vocab.json", json_files, 4),
    _imported("source.spm", binary_files, 4),
    _ctranslate2("conversion/checksums.json", json_files, 40),
    _ctranslate2("conversion/config.json", json_files, 40),
    _ctranslate2("conversion/shared_vocabulary.json", json_files, 40),
    _ctranslate2("conversion/model.bin", binary_files, 40),
    _checkpoint(f"{CHECKPOINT}/trainer_state.json", json_files, 4),
    _checkpoint(f"{CHECKPOINT}/weights.safetensors", safetensors_files, 4),
    _checkpoint(f"{CHECKPOINT}/optimizer.safetensors", safetensors_files, 4),
    _dataset("dataset/dataset.json", json_files),
    _dataset("dataset/source.ids", binary_files),
    _dataset("dataset/source.offsets", binary_files),
    _dataset("dataset/target.offsets", binary_files),
    Reader("run: run.json", "training/run.json", valid_files.write_training_folder, _read_run, json_files),
    Reader(
        "run: preprocessed.json",
        f"{DATA}/preprocessed.json",
        valid_files.write_training_folder,
        _read_prepared,
        json_files,
        slow=4,
    ),
    Reader(
        "run: validation.tsv",
        f"{DATA}/validation.tsv",
        valid_files.write_training_folder,
        _read_prepared,
        lambda seeds: text_files(seeds, [b"\t"]),
        slow=4,
    ),
    Reader(
        "run: autotune.json",
        "training/autotune.json",
        valid_files.write_training_folder,
        _read_compute_config,
        json_files,
    ),
    Reader(
        "run: metrics.jsonl",
        "training/metrics.jsonl",
        valid_files.write_training_folder,
        _read_metrics,
        _metrics_inputs,
    ),
    Reader(
        "snapshot",
        "training/snapshots/000000000.safetensors",
        valid_files.write_training_folder,
        _read_snapshot,
        safetensors_files,
        slow=4,
    ),
    Reader("trace: header", "trace.safetensors", valid_files.write_trace_file, _read_trace, safetensors_files, slow=8),
    Reader(
        "trace: manifest",
        "trace.safetensors",
        valid_files.write_trace_file,
        _read_trace,
        lambda seeds: safetensors_metadata(seeds, "heedful"),
        slow=8,
    ),
    _bulk("partial JSONL", "out.jsonl.partial", JSON_LINE, b"{}\n", b"[]\n", b'{"line": []}\n', b'{"line": 1e999}\n'),
    _bulk("partial TSV", "out.tsv.partial", TSV_LINE, b"\t", b"-5\ta\n", b"999999999\ta\n"),
    _bulk("settings", "out.tsv.partial.json", TSV_LINE),
    Reader("distillation: report.json", "report.json", _write_rows, _read_rows, json_files),
]
