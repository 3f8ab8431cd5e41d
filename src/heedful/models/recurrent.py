"""The model that the Transformer replaced: an RNN encoder-decoder with attention (Bahdanau et al. 2015).

The encoder reads the source in both directions; before each target token, the decoder attends to the memory.
Both run token by token, so the positions of a sentence cannot be computed in parallel.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heedful.models.attention import mask_scores
from heedful.models.base import Observer, Seq2SeqModel, observe
from heedful.models.config import ModelConfig
from heedful.models.embeddings import new_output_bias, new_token_embeddings
from heedful.models.sublayers import Dropout
from heedful.tokenization.special_tokens import PAD

RNN_LAYERS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}

RNN_CELLS: dict[str, type[nn.GRUCell] | type[nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Hidden state of each hypothesis, and the memory that it attends to."""

    hidden: Tensor  # (rows, layers, d_model), or 2 * d_model for an LSTM
    memory: Tensor  # (sentences, source length, d_model)
    keys: Tensor  # attention keys of the memory: (sentences, source length, d_model)
    attention_mask: Tensor | None  # (sentences, source length)
    beam_size: int = 1

    def reorder(self, rows: Tensor) -> "RecurrentState":
        """Select rows, given as (sentences, beam_size); each line comes from one sentence."""
        sentences = rows[:, 0] // self.beam_size
        return RecurrentState(
            self.hidden[rows.flatten()],
            self.memory[sentences],
            self.keys[sentences],
            None if self.attention_mask is None else self.attention_mask[sentences],
            rows.size(1),
        )


class RecurrentEncoder(nn.Module):
    """Source ids to the memory: forward and backward states, concatenated per token."""

    def __init__(self, config: ModelConfig, token_embedding: nn.Embedding) -> None:
        super().__init__()
        self.table = token_embedding
        self.dropout = Dropout(config.dropout)
        rnn_class, d_model = RNN_LAYERS[config.architecture], config.d_model
        self.layers = nn.ModuleList(
            rnn_class(d_model, d_model // 2, batch_first=True, bidirectional=True) for _ in range(config.encoder_layers)
        )
        self.scale = config.embedding_scale

    def forward(self, source: Tensor) -> Tensor:
        positions = torch.arange(1, source.size(1) + 1, device=source.device)
        lengths = ((source != PAD) * positions).amax(1).clamp(min=1).cpu()
        x: Tensor = self.dropout(self.table(source) * self.scale)
        for layer in self.layers:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            outputs, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=source.size(1))
            x = self.dropout(outputs)
        return x


class AdditiveAttention(nn.Module):
    """score = v . tanh(W s + U h): one head whose query is the last decoder state."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.score = nn.Parameter(torch.empty(d_model))
        nn.init.uniform_(self.score, -(d_model**-0.5), d_model**-0.5)

    def weights(self, state: Tensor, keys: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Attention weights of queries (sentences, beam_size, d_model): (sentences, beam_size, length)."""
        combined = torch.tanh(self.query(state)[:, :, None] + keys[:, None])
        scores = combined @ self.score.to(combined.dtype)
        return mask_scores(scores, None if attention_mask is None else attention_mask[:, None]).softmax(-1)


class RecurrentDecoder(nn.Module):
    """At each step: attend to the memory, read the previous token, update the state."""

    def __init__(self, config: ModelConfig, token_embedding: nn.Embedding) -> None:
        super().__init__()
        d_model = config.d_model
        self.table, self.scale = token_embedding, config.embedding_scale
        self.dropout = Dropout(config.dropout)
        cell_class = RNN_CELLS[config.architecture]
        self.state_count = 2 if config.architecture == "lstm" else 1
        self.attention = AdditiveAttention(d_model)
        self.first = nn.Linear(d_model, config.decoder_layers * self.state_count * d_model)
        self.cells = nn.ModuleList(
            cell_class(2 * d_model if index == 0 else d_model, d_model) for index in range(config.decoder_layers)
        )
        self.readout = nn.Linear(3 * d_model, d_model)

    def start(self, memory: Tensor, attention_mask: Tensor | None) -> RecurrentState:
        """The initial state, computed from the mean of the memory."""
        if attention_mask is None:
            mean = memory.mean(1)
        else:
            lengths = attention_mask.sum(1, keepdim=True).clamp(min=1)
            mean = (memory * attention_mask[..., None]).sum(1) / lengths
        hidden = torch.tanh(self.first(mean)).view(len(memory), len(self.cells), -1)
        return RecurrentState(hidden, memory, self.attention.key(memory), attention_mask)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings of target tokens, scaled, after dropout."""
        vectors: Tensor = self.dropout(self.table(tokens) * self.scale)
        return vectors

    def forward(self, token_vectors: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """One step, from token vectors (rows, d_model): output states, attention weights, new state."""
        sentences, d_model = len(state.memory), token_vectors.size(-1)
        top_hidden = state.hidden[:, -1, :d_model].reshape(sentences, -1, d_model)
        weights = self.attention.weights(top_hidden, state.keys, state.attention_mask)
        context = (weights @ state.memory).reshape(-1, d_model)
        x, hidden = torch.cat([token_vectors, context], -1), []
        for index, cell in enumerate(self.cells):
            states = state.hidden[:, index].chunk(self.state_count, -1)
            new_states = cell(x, states if self.state_count == 2 else states[0])
            new_states = new_states if self.state_count == 2 else (new_states,)
            hidden.append(torch.cat(new_states, -1))
            x = self.dropout(new_states[0])
        output = torch.tanh(self.readout(torch.cat([x, context, token_vectors], -1)))
        return self.dropout(output), weights, replace(state, hidden=torch.stack(hidden, 1))


class RecurrentModel(Seq2SeqModel):
    """GRU or LSTM encoder-decoder with additive attention, with the interface of the Transformer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source, target, output = new_token_embeddings(config)
        self.encoder = RecurrentEncoder(config, source)
        self.decoder = RecurrentDecoder(config, target)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def embeddings(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.encoder.table, self.decoder.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        memory: Tensor = self.encoder(source)
        observe(observer, "encoder.memory", memory)
        return memory

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None) -> Tensor:
        state = self.decoder.start(memory, self._source_padding_mask(source))
        token_vectors = self.decoder.embed(target)
        states, weights = [], []
        for position in range(target.size(1)):
            step_state, step_weights, state = self.decoder(token_vectors[:, position], state)
            states.append(step_state)
            weights.append(step_weights)
        all_states = torch.stack(states, 1)
        if observer is not None:
            observer("decoder.0.cross.weights", torch.cat(weights, 1)[:, None])
            observer("decoder.states", all_states)
        return all_states

    def start(self, source: Tensor) -> RecurrentState:
        return self.decoder.start(self.encode(source), self._source_padding_mask(source))

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        decoder_output, _, state = self.decoder(self.decoder.embed(tokens), state)
        return F.log_softmax(self.logits(decoder_output), -1), state

    def _source_padding_mask(self, source: Tensor) -> Tensor | None:
        attention_mask = self.source_attention_mask(source)
        return None if attention_mask is None else attention_mask[:, 0, 0]
