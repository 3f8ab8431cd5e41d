"""All readers of users' files, of our own files and of requests."""

from tests.fuzzing.corpus_readers import CORPORA
from tests.fuzzing.model_readers import MODELS
from tests.fuzzing.server_requests import REQUESTS

READERS = [*CORPORA, *MODELS, *REQUESTS]
