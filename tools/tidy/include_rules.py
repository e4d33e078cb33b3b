"""Who may include what: layers point downward, and each vendor's headers have their homes."""

from __future__ import annotations

import re
from typing import Iterator

from tools.tidy.source_tree import SourceFile, SourceTree, Violation

# Lowest first; packages of one line do not include each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("common/base",),
    ("common/model",),
    ("common/delta", "common/quantise"),
    ("common/memory", "common/ledger", "common/sync_state", "common/formats"),
    ("common/transport", "common/service", "common/proto_convert"),
    ("sender_daemon", "receiver_daemon"),
    ("tools/checkpoint",),
    ("tools/bench", "tools/bazel", "tools/demo", "tools/dwsctl"),
    ("tools/gpu_check",),
    ("tests",),
)
_LAYER = {component: number for number, names in enumerate(LAYERS) for component in names}

# Who may use generated messages; everything else works on model values.
PROTO_USERS = (
    "common/delta/objects/manifest",
    "common/proto_convert/",
    "common/service/",
    "common/transport/shared_fs/manifest",
    "receiver_daemon/",
    "sender_daemon/",
    "tests/",
    "tools/",
)
_GRPC_USERS = (
    "common/service/",
    "receiver_daemon/",
    "sender_daemon/",
    "tests/",
    "tools/bazel/debian/",
    "tools/bench/control_plane/",
    "tools/dwsctl/",
)
# What a header's name matches, and where it may be included.
VENDORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"absl/", ("common/base/",)),
    (r"catch2/", ("tests/",)),
    (r"CLI/", ("common/service/config/", "common/service/program/", "sender_daemon/", "receiver_daemon/",
               "tools/", "tests/")),
    (r"cuda|cooperative_groups", ("common/memory/cuda/", "tests/common/memory/cuda/")),
    (r"curl/", ("tests/",)),
    (r"event2/", ("common/service/http/",)),
    (r"google/protobuf/", ("common/delta/objects/manifest", "common/proto_convert/",
                          "common/service/grpc/full_frame_message", "common/service/http/", "tools/dwsctl/", "tests/")),
    (r"grpc", _GRPC_USERS),
    (r"nccl", ("common/transport/nccl/",)),
    (r"nlohmann/", ("common/formats/", "common/service/", "receiver_daemon/engine_http/", "tools/",
                    "tests/")),
    (r"openssl/", ("common/service/security/", "common/service/http/", "common/transport/shared_fs/sha256",
                   "tests/")),
    (r"prometheus/", ("common/service/metrics/",)),
    (r"rdma/", ("common/transport/fabric/",)),
    (r"sanitizer/", ("tools/bazel/debian/", "tests/")),
    (r"spdlog/", ("common/base/log/log.",)),
    (r"systemd/", ()),  # sd_notify is our own few lines
    (r"toml\+\+/", ("common/service/config/",)),
    (r"zlib\.h", ("common/formats/",)),
    (
        r"xxhash|zstd",
        (
            "common/delta/",
            "common/formats/",
            "tools/bench/",
            "tools/checkpoint/",
            "tests/common/formats/",
        ),
    ),
)
_INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def component_of(path: str) -> str | None:
    """The component of LAYERS a path belongs to."""
    parts = path.split("/")
    for length in (2, 1):
        if (name := "/".join(parts[:length])) in _LAYER:
            return name
    return None


def _check_own(path: str, line: int, included: str) -> Iterator[Violation]:
    if included.startswith("proto/"):
        if not path.startswith(PROTO_USERS):
            yield Violation("layers", path, line, f"{included}: messages stay behind proto_convert")
        if included.endswith(".grpc.pb.h") and not path.startswith(_GRPC_USERS):
            yield Violation("vendor-home", path, line, f"{included} includes gRPC")
        return
    own, other = component_of(path), component_of(included)
    if other is None:
        yield Violation("layers", path, line, f'"{included}" is in no known layer')
    elif own is None:
        yield Violation("layers", path, line, "this file is in no known layer (tools/tidy/include_rules.py)")
    elif own != other and _LAYER[own] <= _LAYER[other]:
        yield Violation("layers", path, line, f"{own} may not include {other}: includes point downward")


def check_file(file: SourceFile) -> Iterator[Violation]:
    for line, text in enumerate(file.lines, 1):
        match = _INCLUDE.match(text)
        if match is None:
            continue
        kind, included = match.groups()
        if kind == '"':
            yield from _check_own(file.path, line, included)
            continue
        for pattern, homes in VENDORS:
            if re.match(pattern, included) and not file.path.startswith(homes):
                yield Violation("vendor-home", file.path, line,
                                f"<{included}> belongs in {', '.join(homes)}")


def check(tree: SourceTree) -> Iterator[Violation]:
    for file in tree.cpp():
        yield from check_file(file)
