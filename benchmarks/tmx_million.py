"""Time and memory to read a translation memory of a million units.

    python benchmarks/tmx_million.py [--units N] [--rounds N]

A TMX file is generated in a temporary folder and read by Heedful, by a plain `lxml.etree.iterparse` loop that
takes the two texts of every unit and clears it, and, if it is installed, by `tmxfile` of translate-toolkit on a
smaller file, since it loads the complete file. Each runs in a separate process, whose CPU seconds and peak memory are
measured; the minimum of some rounds counts. Needs `resource`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

WORDS = [
    "the",
    "house",
    "stands",
    "by",
    "a",
    "river",
    "and",
    "few",
    "know",
    "who",
    "built",
    "it",
    "so",
    "long",
    "ago",
]
START = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n'
    '<header creationtool="benchmark" creationtoolversion="1" segtype="sentence" o-tmf="none" adminlang="en" '
    'srclang="en" datatype="plaintext"/>\n<body>\n'
)
END = "</body>\n</tmx>\n"
UNIT = (
    '<tu tuid="{number}"><tuv xml:lang="en-GB"><seg>{source} <bpt i="1">&lt;b&gt;</bpt>{number}'
    '<ept i="1">&lt;/b&gt;</ept>.</seg></tuv>\n<tuv xml:lang="de"><seg>{target} {number} &amp; mehr.</seg>'
    "</tuv></tu>\n"
)
MEASUREMENT_PROGRAM = """
import json, resource, sys, time
from pathlib import Path
{setup}
start = time.process_time()
count = {count}
used = resource.getrusage(resource.RUSAGE_SELF)
megabytes = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
print(json.dumps([count, time.process_time() - start, megabytes]))
"""
HEEDFUL_PROGRAM = MEASUREMENT_PROGRAM.format(
    setup="from heedful.data.reader import read_pairs\n"
    "from heedful.data.formats.base import ReadOptions\nimport lxml.etree",
    count="sum(not record.error for record in read_pairs([Path(sys.argv[1])], ReadOptions(('en', 'de'))))",
)
ITERPARSE_PROGRAM = MEASUREMENT_PROGRAM.format(
    setup="""from lxml import etree
def units(path):
    for _, unit in etree.iterparse(path, tag="tu"):
        yield ["".join(segment.itertext()) for segment in unit.iter("seg")]
        unit.clear()
        while unit.getprevious() is not None:
            del unit.getparent()[0]""",
    count="sum(len(texts) == 2 for texts in units(sys.argv[1]))",
)
TOOLKIT_PROGRAM = MEASUREMENT_PROGRAM.format(
    setup="from translate.storage.tmx import tmxfile",
    count="sum(bool(unit.source and unit.target) for unit in "
    "tmxfile(open(sys.argv[1], 'rb'), sourcelanguage='en-GB', targetlanguage='de').units)",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    sizes = (options.units // 10, options.units)
    with tempfile.TemporaryDirectory() as folder:
        files = {size: write_tmx(Path(folder, f"{size}.tmx"), size) for size in (options.units // 50, *sizes)}
        plain = measure_seconds(
            "plain iterparse", ITERPARSE_PROGRAM, files[options.units], options.units, options.rounds
        )
        for size in sizes:
            cpu_seconds = measure_seconds("Heedful", HEEDFUL_PROGRAM, files[size], size, options.rounds)
        print(f"Heedful / plain iterparse: {cpu_seconds / plain:.2f} times the CPU seconds")
        if find_spec("translate"):
            small_size = options.units // 50
            toolkit_seconds = measure_seconds(
                "translate-toolkit", TOOLKIT_PROGRAM, files[small_size], small_size, options.rounds
            )
            ratio = toolkit_seconds / small_size * options.units / plain
            print(f"translate-toolkit / plain iterparse: {ratio:.2f} times the CPU seconds per unit")


def write_tmx(path: Path, units: int) -> Path:
    """Write a file of that many different units."""
    with path.open("w", encoding="utf-8") as file:
        file.write(START)
        for number in range(units):
            shift = number % len(WORDS)
            source = " ".join(WORDS[shift:] + WORDS[:shift])
            file.write(UNIT.format(number=number, source=source, target=source.upper()))
        file.write(END)
    return path


def measure_seconds(name: str, code: str, path: Path, units: int, rounds: int) -> float:
    """The minimum CPU seconds of some rounds; prints them with the peak memory."""
    measurements = []
    for _ in range(rounds):
        result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        count, cpu_seconds, memory = json.loads(result.stdout)
        assert count == units, f"{name} found {count} of {units} pairs"
        measurements.append((cpu_seconds, memory))
    least, peak = min(measurements)[0], max(memory for _, memory in measurements)
    size = path.stat().st_size / (1 << 20)
    print(f"{name:18} {units:9,} units ({size:6.1f} MB): {least:6.2f} CPU s, peak memory {peak:6.1f} MB", flush=True)
    return least


if __name__ == "__main__":
    main()
