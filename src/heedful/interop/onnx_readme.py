"""What lies beside exported ONNX graphs: the numbers that writing needs, and a program that uses them."""

from typing import Any

from heedful.bundle import Bundle
from heedful.interop.samples import sample_texts
from heedful.text.tokenizer import END, PAD, UNKNOWN

_README = """# {title}

A translation model as ONNX graphs (opset {opset}), made by Heedful.

- `encoder.onnx` takes `source` (rows, source length): ids, each row ended by {end} and padded by {pad}.
  It gives `memory_key_N` and `memory_value_N` for every decoder layer N.
- `decoder.onnx` takes `tokens` (rows), `source`, all `memory_...`, and `past_key_N` and `past_value_N`
  (rows, {heads}, past length, {channels}), which are empty at first. It gives `logits` (rows,
  {vocabulary}) and `present_...`, which are the `past_...` of the next token.
- `source.spm` and `target.spm` are SentencePiece models, `source_vocabulary.json` and
  `target_vocabulary.json` have the piece of every id, `generation.json` special ids, sizes and limits.

The first token is {pad}, whose score as an output is minus infinity; {end} ends a sentence. For a beam,
repeat the rows of `source` and `memory_...`, and choose rows of `present_...` as hypotheses are chosen.

`pip install onnxruntime sentencepiece numpy`, then in this folder:

```python
import json
from pathlib import Path

import numpy
import onnxruntime
import sentencepiece

def read(name):
    return json.loads(Path(name).read_text(encoding="utf-8"))

settings = read("generation.json")
source_ids = {{piece: number for number, piece in enumerate(read("source_vocabulary.json"))}}
target_pieces = read("target_vocabulary.json")
source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
encoder = onnxruntime.InferenceSession("encoder.onnx")
decoder = onnxruntime.InferenceSession("decoder.onnx")

def translate(text):
    pieces = source.encode(text, out_type=str)
    ids = numpy.array([[source_ids.get(piece, settings["unknown"]) for piece in pieces] + [settings["end"]]])
    known = {{"source": ids}}
    known |= zip([each.name for each in encoder.get_outputs()], encoder.run(None, known))
    empty = numpy.zeros((1, settings["heads"], 0, settings["channels"]), numpy.float32)
    past = {{each.name: empty for each in decoder.get_inputs() if each.name.startswith("past_")}}
    token, written = settings["start"], []
    for _ in range(len(pieces) + settings["extra_length"]):
        logits, *present = decoder.run(None, {{"tokens": numpy.array([token]), **known, **past}})
        past = dict(zip(past, present))
        token = int(logits[0].argmax())
        if token == settings["end"] or len(written) == settings["longest"]:
            break
        written.append(target_pieces[token])
    return target.decode(written)

for sentence in [{sentence!r}]:
    print(translate(sentence))
```

Give it sentences of up to {longest_source} pieces{form}; longer text should be split.
"""


def generation(bundle: Bundle, opset: int) -> dict[str, Any]:
    """What a program must know besides the graphs."""
    config, model = bundle.config, bundle.config.model
    return {
        "format": 1,
        "opset": opset,
        "languages": config.languages,
        "start": PAD,
        "pad": PAD,
        "end": END,
        "unknown": UNKNOWN,
        "decoder_layers": model.decoder_layers,
        "heads": model.heads,
        "channels": model.channels,
        "source_vocabulary": model.source_vocabulary,
        "target_vocabulary": model.target_vocabulary,
        "extra_length": config.search.extra_length,
        "beam": config.search.beam,
        "length_penalty": config.search.length_penalty,
        "longest": model.longest if model.ends else None,
        "longest_source": config.longest_source,
        "normalize": config.normalize,
    }


def readme(bundle: Bundle, opset: int) -> str:
    """How to use the folder, with a program that translates greedily."""
    config = bundle.config
    return _README.format(
        title=" to ".join(config.languages) if config.languages else "A translation model",
        opset=opset,
        pad=PAD,
        end=END,
        heads=config.model.heads,
        channels=config.model.channels,
        vocabulary=config.model.target_vocabulary,
        sentence=sample_texts(bundle)[0],
        longest_source=config.longest_source,
        form=" in Unicode form NFC" if config.normalize == "nfc" else "",
    )
