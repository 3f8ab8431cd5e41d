"""The whole model of figure 1: encoder, decoder, and the output layer."""

from torch import Tensor, nn

from heedful.model.cache import DecoderCache
from heedful.model.config import ModelConfig
from heedful.model.decoder import Decoder
from heedful.model.embedding import new_output_bias, new_tables
from heedful.model.encoder import new_encoder
from heedful.model.observer import Observer, within
from heedful.model.translator import Translator


class Transformer(Translator):
    """Encoder-decoder Transformer; ``encode`` and ``decode`` apart, so that search needs nothing else."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source, target, output = new_tables(config)
        self.encoder = new_encoder(config, source)
        self.decoder = Decoder(config, target)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def tables(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.encoder.embedding.table, self.decoder.embedding.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        memory: Tensor = self.encoder(source, self.visible(source), within(observer, "encoder"))
        return memory

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None
    ) -> Tensor:
        states: Tensor = self.decoder(target, memory, self.visible(source), within(observer, "decoder"))
        return states

    def start(self, source: Tensor) -> DecoderCache:
        return self.decoder.start(self.encode(source), self.visible(source))

    def step(self, tokens: Tensor, state: DecoderCache) -> tuple[Tensor, DecoderCache]:
        states, state = self.decoder.step(tokens, state)
        return self.logits(states).log_softmax(-1), state
