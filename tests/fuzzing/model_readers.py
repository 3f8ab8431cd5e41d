"""Readers of tokenizers, weights, checkpoints, token stores, run folders, foreign models and records."""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from hypothesis.strategies import SearchStrategy

from heedful.config import Config
from heedful.convert.marian.importer import import_marian
from heedful.data.collate import collate
from heedful.data.dataset import TokenDataset, TokenDatasetWriter
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import BATCH_LINES, open_resumable
from heedful.inference.loading import load
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
from heedful.training.run import read_compute_config as read_arithmetic
from heedful.training.run import read_run_description
from heedful.training.step import new_optimizer, run_update
from heedful.web.notebook import show
from heedful.web.standalone import PageView, build_url_fragment, pack_trace, render_standalone_page
from heedful.workflows.distill import load_rows
from tests.fuzzing import examples
from tests.fuzzing.mutations import archive, binary, damaged, json_file, lines, safetensors_file, safetensors_metadata
from tests.fuzzing.outcomes import Reader


class _Silent(Reporter):
    """Says nothing, not even warnings."""

    def warning(self, text: str) -> None:
        return


SILENT = _Silent(quiet=True)
SEARCH = GenerationConfig(beam_size=2, max_length_offset=4)
TEXTS = ("The dog was too tired.", "", "été \U0001f600 \u202e\0 x", ">>fr<< a")
CHECKPOINT = "training/checkpoints/000000004"
DATA = "training/data"
STORE = f"{DATA}/train"
JSON_LINE, TSV_LINE = '{{"line": {number}, "text": "a"}}\n', "{number}\ttext\n"
LAST_METRICS = b'{"update": 2, "epoch": 0.1, "seconds": 0.5, "loss": 3.5, "validation_loss": 3.4}\n'


def _check_tokenizer(tokenizer: PairTokenizer) -> None:
    for side in (tokenizer.source, tokenizer.target):
        for text in TEXTS:
            ids = side.encode(text)
            assert all(0 <= identity < side.vocab_size for identity in ids)
            side.decode(ids).encode()
            side.word_ids(ids)
            side.char_spans(ids)


def _read_tokenizer(folder: Path) -> None:
    _check_tokenizer(PairTokenizer.load(folder / "tokenizer.json"))


def _check_model(bundle: ModelFolder) -> None:
    """Whatever weights it has, it answers."""
    _check_tokenizer(bundle.tokenizer)
    found = Translator.with_pytorch(bundle).translate([TEXTS[0]], SEARCH)
    found[0].text.encode()


def _read_model(folder: Path) -> None:
    _check_model(ModelFolder.load(folder))


def _read_converted(folder: Path) -> None:
    engine = load(folder, device="cpu", engine="ctranslate2", workers=1)
    engine.translate([TEXTS[0]], SEARCH)


def _read_marian(folder: Path) -> None:
    _check_model(import_marian(folder, allow_bin=True))


def _read_marian_zip(folder: Path) -> None:
    import_marian(folder / "model.zip")


def _read_checkpoint(folder: Path) -> None:
    """Back into a model, which then goes on learning."""
    bundle = ModelFolder.open(folder)
    config = TrainingConfig(precision="float32")
    model = new_model(bundle.config.model)
    optimizer = new_optimizer(model, config)
    [*_, last] = list_checkpoints(folder / "training" / "checkpoints")
    state = load_checkpoint(last, model, optimizer)
    assert isinstance(state.update, int)
    average_weights(list_checkpoints(folder / "training" / "checkpoints")[-2:])
    run_update(model, optimizer, [collate([[5, 6]], [[7]])], config, 0.001)


def _read_snapshot(folder: Path) -> None:
    bundle = ModelFolder.load(folder)
    load_snapshot(bundle, folder, next(iter(list_saved_weights(folder))))


def _write_store(folder: Path) -> None:
    with TokenDatasetWriter(folder / "store", 300, 300) as store:
        for source, target in (([1, 2, 3], [4]), ([], [5, 6]), ([299], [7, 8, 9, 10])):
            store.add(source, target)


def _read_store(folder: Path) -> None:
    store = TokenDataset.open(folder / "store")
    for number in range(len(store)):
        source, target = store.source(number), store.target(number)
        assert len(source) == store.source_lengths[number]
        assert len(target) == store.target_lengths[number]
    for lengths, told in ((store.source_lengths, store.summary.source), (store.target_lengths, store.summary.target)):
        assert int(np.sum(lengths)) == told.tokens
        assert int(max(lengths, default=0)) <= told.max_length


def _read_run(folder: Path) -> None:
    begun = read_run_description(folder)
    for part in (*begun.inputs.sources, *begun.inputs.validation_sources):
        part.name.encode("utf-8", "surrogatepass")
    assert begun.threads >= 1


def _read_prepared(folder: Path) -> None:
    prepared = load_prepared(folder / DATA)
    assert isinstance(prepared.model_config, Config)
    assert prepared.mixture is not None
    assert len(prepared.mixture.indices(1, 0)) <= 10 * len(prepared.dataset)
    for line in prepared.summary:
        line.encode("utf-8", "replace")


def _read_arithmetic(folder: Path) -> None:
    read_arithmetic(folder / "training" / "autotune.json")


def _read_metrics(folder: Path) -> None:
    path = folder / "training" / "metrics.jsonl"
    json.dumps(_read_training(folder), allow_nan=False)
    found = read_metrics(path)
    assert found
    truncate_metrics(path, 3)


def _read_record(folder: Path) -> None:
    """Read it, and draw the page around it."""
    path = folder / "record.safetensors"
    found = load_trace(path)
    show(path)._repr_html_()
    url = build_url_fragment(PageView(), found.manifest)
    render_standalone_page(pack_trace(found, url), url).encode()


def _read_bulk(name: str, line: str) -> Callable[[Path], None]:
    """Go on with what was translated; the file that is not damaged was moved away by the time before."""
    number = "jsonl" if name.endswith(".jsonl") else "tsv"

    def read(folder: Path) -> None:
        for file, content in _bulk_files(name, line).items():
            if not (folder / file).exists():
                (folder / file).write_bytes(content)
        with open_resumable(folder / name, {"model": "m"}, number, SILENT) as (_, done):
            assert done >= 0

    return read


def _bulk_files(name: str, line: str) -> dict[str, bytes]:
    text = "".join(line.format(number=number) for number in range(1, 2 * BATCH_LINES))
    return {f"{name}.partial": text.encode(), f"{name}.partial.json": b'{"model": "m"}'}


def _bulk(name: str, file: str, line: str, *fragments: bytes) -> Reader:
    output = file.partition(".partial")[0]

    def prepare(folder: Path) -> None:
        for each, content in _bulk_files(output, line).items():
            (folder / each).write_bytes(content)

    inputs = (lambda seeds: lines(seeds, fragments)) if fragments else json_file
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


def _write_tokenizer(kind: str) -> Callable[[Path], None]:
    return lambda folder: examples.tokenizer(kind).save(folder / "tokenizer.json")


def _zipped(folder: Path) -> list[tuple[str, bytes]]:
    examples.marian_folder(folder / "unpacked")
    return [(f"m/{path.name}", path.read_bytes()) for path in sorted((folder / "unpacked").iterdir())]


def _write_zip(folder: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed_files:
        for name, data in _zipped(folder):
            packed_files.writestr(name, data)
    (folder / "model.zip").write_bytes(file.getvalue())


def _archives(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    with zipfile.ZipFile(io.BytesIO(seeds[0])) as found:
        members = [(name, found.read(name)) for name in found.namelist()]
    return archive(members) | damaged(seeds)


def _metrics(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """JSON line by line."""
    first = [seed.splitlines()[0] for seed in seeds]
    one = json_file(first)
    return lines(seeds, [b"{}\n", b"[]\n", b'{"update": "a"}\n', b'{"update": NaN}\n']) | one.map(
        lambda line: LAST_METRICS + line + b"\n" + LAST_METRICS
    )


def _of(name: str, prepare: Callable[[Path], None], read: Callable[[Path], None]) -> Callable[..., Reader]:
    """Readers of several files of one folder."""

    def new(file: str, inputs: Callable[[Sequence[bytes]], SearchStrategy[bytes]], slow: int = 1) -> Reader:
        return Reader(f"{name}: {Path(file).name}", file, prepare, read, inputs, slow=slow)

    return new


_model = _of("model", examples.model_folder, _read_model)
_marian = _of("MarianMT", examples.marian_folder, _read_marian)
_converted = _of("CTranslate2", examples.converted_folder, _read_converted)
_checkpoint = _of("checkpoint", examples.run_folder, _read_checkpoint)
_store = _of("token store", _write_store, _read_store)

MODELS = [
    *(
        Reader(f"tokenizer: {kind}", "tokenizer.json", _write_tokenizer(kind), _read_tokenizer, json_file, slow=2)
        for kind in ("bpe", "unigram", "word", "character")
    ),
    _model("config.json", json_file, 4),
    _model("tokenizer.json", json_file, 4),
    _model("weights.safetensors", safetensors_file, 4),
    _marian("config.json", json_file, 4),
    _marian("generation_config.json", json_file, 4),
    _marian("tokenizer_config.json", json_file, 4),
    _marian("vocab.json", json_file, 4),
    _marian("source.spm", binary, 4),
    _marian("model.safetensors", safetensors_file, 4),
    Reader("MarianMT: zip", "model.zip", _write_zip, _read_marian_zip, _archives, slow=8),
    Reader(
        "MarianMT: pytorch_model.bin", "pytorch_model.bin", examples.old_marian_folder, _read_marian, binary, slow=8
    ),
    _converted("ctranslate2/float32/conversion.json", json_file, 40),
    _converted("ctranslate2/float32/config.json", json_file, 40),
    _converted("ctranslate2/float32/shared_vocabulary.json", json_file, 40),
    _converted("ctranslate2/float32/model.bin", binary, 40),
    _checkpoint(f"{CHECKPOINT}/trainer_state.json", json_file, 4),
    _checkpoint(f"{CHECKPOINT}/weights.safetensors", safetensors_file, 4),
    _checkpoint(f"{CHECKPOINT}/optimizer.safetensors", safetensors_file, 4),
    _store("store/dataset.json", json_file),
    _store("store/source.ids", binary),
    _store("store/source.offsets", binary),
    _store("store/target.offsets", binary),
    Reader("run: run.json", "training/run.json", examples.run_folder, _read_run, json_file),
    Reader(
        "run: preprocessed.json", f"{DATA}/preprocessed.json", examples.run_folder, _read_prepared, json_file, slow=4
    ),
    Reader(
        "run: validation.tsv",
        f"{DATA}/validation.tsv",
        examples.run_folder,
        _read_prepared,
        lambda seeds: lines(seeds, [b"\t"]),
        slow=4,
    ),
    Reader("run: autotune.json", "training/autotune.json", examples.run_folder, _read_arithmetic, json_file),
    Reader("run: metrics.jsonl", "training/metrics.jsonl", examples.run_folder, _read_metrics, _metrics),
    Reader(
        "snapshot",
        "training/snapshots/000000000.safetensors",
        examples.run_folder,
        _read_snapshot,
        safetensors_file,
        slow=4,
    ),
    Reader("record: header", "record.safetensors", examples.record_file, _read_record, safetensors_file, slow=8),
    Reader(
        "record: manifest",
        "record.safetensors",
        examples.record_file,
        _read_record,
        lambda seeds: safetensors_metadata(seeds, "heedful"),
        slow=8,
    ),
    _bulk("partial JSONL", "out.jsonl.partial", JSON_LINE, b"{}\n", b"[]\n", b'{"line": []}\n', b'{"line": 1e999}\n'),
    _bulk("partial TSV", "out.tsv.partial", TSV_LINE, b"\t", b"-5\ta\n", b"999999999\ta\n"),
    _bulk("mark", "out.tsv.partial.json", TSV_LINE),
    Reader("distillation: report.json", "report.json", _write_rows, _read_rows, json_file),
]
