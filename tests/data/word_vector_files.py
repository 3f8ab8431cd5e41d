"""Write files of word vectors, for the tests that read them."""

from pathlib import Path

from heedful.data.word_vectors import VectorFormat, WordVectors


def write_word_vectors(path: Path, vectors: WordVectors, file_format: VectorFormat = "glove") -> None:
    with path.open("wb") as file:
        if file_format != "glove":
            file.write(b"%d %d\n" % vectors.matrix.shape)
        for word, row in zip(vectors, vectors.matrix, strict=True):
            numbers = row.astype("<f4").tobytes() if file_format == "binary" else " ".join(row.astype(str)).encode()
            file.write(word.encode("utf-8", "replace") + b" " + numbers + b"\n")
