"""The model that the paper replaced: a recurrent encoder and decoder with attention (Bahdanau et al. 2015).

The encoder reads the source in both directions; the decoder's state looks back at all it has read before each
word. Both go word by word, so the words of a sentence cannot be computed side by side.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heedful.model.attention import masked
from heedful.model.config import PAD, ModelConfig
from heedful.model.dropout import Dropout
from heedful.model.embedding import new_output_bias, new_tables
from heedful.model.observer import Observer
from heedful.model.translator import Translator

LAYERS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}
CELLS: dict[str, type[nn.GRUCell] | type[nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """What the decoder remembers of each hypothesis, and the source that its attention looks at."""

    hidden: Tensor  # (rows, layers, parts x width); an LSTM has two parts
    memory: Tensor  # (sentences, source length, width)
    keys: Tensor  # the memory as additive attention sees it: (sentences, source length, width)
    visible: Tensor | None  # (sentences, source length)
    beams: int = 1

    def reorder(self, rows: Tensor) -> "RecurrentState":
        """The state of the chosen rows, given as (sentences, beams): each line from one old sentence."""
        sentences = rows[:, 0] // self.beams
        return RecurrentState(
            self.hidden[rows.flatten()],
            self.memory[sentences],
            self.keys[sentences],
            None if self.visible is None else self.visible[sentences],
            rows.size(1),
        )


class RecurrentEncoder(nn.Module):
    """Source ids to the memory: at each word the states of two readers, from the left and from the right."""

    def __init__(self, config: ModelConfig, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        self.dropout = Dropout(config.dropout)
        kind, width = LAYERS[config.family], config.width
        self.layers = nn.ModuleList(
            kind(width, width // 2, batch_first=True, bidirectional=True)
            for _ in range(config.encoder_layers)
        )
        self.scale = config.embedding_scale

    def forward(self, source: Tensor) -> Tensor:
        place = torch.arange(1, source.size(1) + 1, device=source.device)
        lengths = ((source != PAD) * place).amax(1).clamp(min=1).cpu()
        x: Tensor = self.dropout(self.table(source) * self.scale)
        for layer in self.layers:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            read, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=source.size(1))
            x = self.dropout(read)
        return x


class AdditiveAttention(nn.Module):
    """score = v . tanh(W s + U h): one head, its query the decoder's last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.score = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.score, -(width**-0.5), width**-0.5)

    def weights(self, state: Tensor, keys: Tensor, visible: Tensor | None) -> Tensor:
        """(sentences, beams, width) looks at (sentences, length, width): (sentences, beams, length)."""
        mixed = torch.tanh(self.query(state)[:, :, None] + keys[:, None])
        scores = mixed @ self.score.to(mixed.dtype)
        return masked(scores, None if visible is None else visible[:, None]).softmax(-1)


class RecurrentDecoder(nn.Module):
    """One word after another: look at the source, read the last word, make the next state."""

    def __init__(self, config: ModelConfig, table: nn.Embedding) -> None:
        super().__init__()
        width = config.width
        self.table, self.scale = table, config.embedding_scale
        self.dropout = Dropout(config.dropout)
        cell = CELLS[config.family]
        self.parts = 2 if config.family == "lstm" else 1
        self.attention = AdditiveAttention(width)
        self.first = nn.Linear(width, config.decoder_layers * self.parts * width)
        self.cells = nn.ModuleList(
            cell(2 * width if number == 0 else width, width) for number in range(config.decoder_layers)
        )
        self.readout = nn.Linear(3 * width, width)

    def start(self, memory: Tensor, visible: Tensor | None) -> RecurrentState:
        """The first state is made of the mean of the memory."""
        if visible is None:
            mean = memory.mean(1)
        else:
            mean = (memory * visible[..., None]).sum(1) / visible.sum(1, keepdim=True).clamp(min=1)
        hidden = torch.tanh(self.first(mean)).view(len(memory), len(self.cells), -1)
        return RecurrentState(hidden, memory, self.attention.key(memory), visible)

    def embedded(self, tokens: Tensor) -> Tensor:
        """The vectors of words that were written."""
        vectors: Tensor = self.dropout(self.table(tokens) * self.scale)
        return vectors

    def forward(self, word: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """From the vectors of the last words (rows, width) to states that predict the next, and weights."""
        sentences, width = len(state.memory), word.size(-1)
        top = state.hidden[:, -1, :width].reshape(sentences, -1, width)
        weights = self.attention.weights(top, state.keys, state.visible)
        context = (weights @ state.memory).reshape(-1, width)
        x, hidden = torch.cat([word, context], -1), []
        for number, cell in enumerate(self.cells):
            parts = state.hidden[:, number].chunk(self.parts, -1)
            found = cell(x, parts if self.parts == 2 else parts[0])
            found = found if self.parts == 2 else (found,)
            hidden.append(torch.cat(found, -1))
            x = self.dropout(found[0])
        read = torch.tanh(self.readout(torch.cat([x, context, word], -1)))
        return self.dropout(read), weights, replace(state, hidden=torch.stack(hidden, 1))


class Recurrent(Translator):
    """Encoder-decoder of GRUs or LSTMs with additive attention, with the interface of the Transformer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source, target, output = new_tables(config)
        self.encoder = RecurrentEncoder(config, source)
        self.decoder = RecurrentDecoder(config, target)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def tables(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.encoder.table, self.decoder.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        memory: Tensor = self.encoder(source)
        if observer is not None:
            observer("encoder.memory", memory)
        return memory

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None
    ) -> Tensor:
        state = self.decoder.start(memory, self._seen(source))
        words = self.decoder.embedded(target)
        states, weights = [], []
        for position in range(target.size(1)):
            found, looked, state = self.decoder(words[:, position], state)
            states.append(found)
            weights.append(looked)
        whole = torch.stack(states, 1)
        if observer is not None:
            observer("decoder.0.cross.weights", torch.cat(weights, 1)[:, None])
            observer("decoder.states", whole)
        return whole

    def start(self, source: Tensor) -> RecurrentState:
        return self.decoder.start(self.encode(source), self._seen(source))

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        found, _, state = self.decoder(self.decoder.embedded(tokens), state)
        return F.log_softmax(self.logits(found), -1), state

    def _seen(self, source: Tensor) -> Tensor | None:
        visible = self.visible(source)
        return None if visible is None else visible[:, 0, 0]
