"""Write the text of one novel from the data file of R's janeaustenr package: public-domain English for perplexity.

    apt-get download r-cran-janeaustenr && dpkg -x r-cran-janeaustenr_*.deb austen
    python scripts/austen_text.py austen/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb emma > emma.txt

The file is a row of chunks, one a novel: 4 bytes of length, then zlib data that holds one serialized R vector of
strings, one a line of the book.
"""

from __future__ import annotations

import argparse
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

TITLES = {
    "emma": "EMMA",
    "mansfield-park": "MANSFIELD PARK",
    "northanger-abbey": "NORTHANGER ABBEY",
    "persuasion": "Persuasion",
    "pride-and-prejudice": "PRIDE AND PREJUDICE",
    "sense-and-sensibility": "SENSE AND SENSIBILITY",
}
_STRINGS, _STRING = 16, 9  # R's types STRSXP and CHARSXP, in the low byte of a flags word


class NotStrings(ValueError):
    """The data is not a row of serialized string vectors."""


def chunks(data: bytes) -> Iterator[bytes]:
    """The decompressed chunks, each of the length that stands before it. Raises NotStrings."""
    while data:
        unzip = zlib.decompressobj()
        try:
            (length,) = struct.unpack_from(">I", data)
            chunk = unzip.decompress(data[4:])
        except (struct.error, zlib.error) as error:
            raise NotStrings(str(error)) from None
        if len(chunk) != length or not unzip.eof:
            raise NotStrings(f"a chunk of {length} bytes ends after {len(chunk)}")
        yield chunk
        data = unzip.unused_data


def lines(chunk: bytes) -> list[str]:
    """Strings of one vector, serialized by R in big-endian form, version 2 or 3. Raises NotStrings."""
    if chunk[:2] != b"X\n":
        raise NotStrings("not R's big-endian serialization")
    (version,) = struct.unpack_from(">i", chunk, 2)
    at = 14  # "X\n", three versions
    if version == 3:
        at += 4 + struct.unpack_from(">i", chunk, at)[0]  # the name of the writer's encoding
    flags, count = struct.unpack_from(">ii", chunk, at)
    if flags & 0xFF != _STRINGS:
        raise NotStrings(f"a vector of R type {flags & 0xFF}, not of strings")
    at += 8
    out = []
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", chunk, at)
        if flags & 0xFF != _STRING or length < 0:
            raise NotStrings("a vector with missing strings")
        out.append(chunk[at + 8 : at + 8 + length].decode("utf-8"))
        at += 8 + length
    return out


def novel(data: bytes, title: str) -> str:
    """The novel whose first line is `title`, newlines kept. Raises NotStrings."""
    for chunk in chunks(data):
        text = lines(chunk)
        if text and text[0] == title:
            return "\n".join(text)
    raise NotStrings(f"no text begins with {title!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rdb", type=Path, help="the package's data/Rdata.rdb")
    parser.add_argument("title", choices=sorted(TITLES))
    args = parser.parse_args()
    try:
        sys.stdout.buffer.write(novel(args.rdb.read_bytes(), TITLES[args.title]).encode("utf-8"))
    except (OSError, NotStrings, struct.error, UnicodeDecodeError) as error:
        print(f"{args.rdb} is not janeaustenr's data file: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
