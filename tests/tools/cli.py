# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests of the command share: running it, reading its documents, reading and writing safetensors.

SLUICE names the program and SLUICE_SOURCE the source folder; CTest sets both.
"""
import json
import math
import os
import pathlib
import struct
import subprocess

import jsonschema

SLUICE = os.environ["SLUICE"]
SOURCE = pathlib.Path(os.environ["SLUICE_SOURCE"])
MODEL = SOURCE / "models/tiny-gpt-oss-mxfp4"
FIXTURES = sorted(path for path in (SOURCE / "tests/data/fixtures").iterdir() if path.is_dir())

OK, INTERNAL, USAGE, REFUSED, UNSUPPORTED, DOES_NOT_FIT, CHECK_FAILED, DEVICE, IO = range(9)


def fixture(name):
    return SOURCE / "tests/data/fixtures" / name


def run(*args, env=None, **options):
    """Runs the command; `env` adds to the environment."""
    return subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=600, check=False,
                          env={**os.environ, **(env or {})}, **options)


def validate(document):
    """Raises unless the document is what the schema that it names says."""
    name = document["schema"].removeprefix("sluice.").replace("/", ".") + ".json"
    schema = json.loads((SOURCE / "docs/schemas" / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def strict_json(text):
    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")
    return json.loads(text, parse_constant=refuse)


def document(*args, code=OK, **options):
    """The document that the command prints with --json, valid by its schema."""
    result = run(*args, "--json", **options)
    assert result.returncode == code, f"exit {result.returncode}, not {code}: {result.stdout}{result.stderr}"
    parsed = strict_json(result.stdout)
    validate(parsed)
    return parsed


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    body = data[8 + length:]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def floats(tensor):
    dtype, _, data = tensor
    assert dtype == "F32", dtype
    return struct.unpack(f"<{len(data) // 4}f", data)


def ints(tensor):
    dtype, _, data = tensor
    size, code = {"I32": (4, "i"), "I64": (8, "q")}[dtype]
    return struct.unpack(f"<{len(data) // size}{code}", data)


def rel_l2(got, want):
    """||got - want|| / ||want||, all elements together."""
    assert len(got) == len(want), f"{len(got)} elements, not {len(want)}"
    difference = math.sqrt(sum((g - w) ** 2 for g, w in zip(got, want)))
    return difference / math.sqrt(sum(w * w for w in want))
