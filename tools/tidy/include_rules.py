"""The headers of vendors and of generated messages have homes. Which folder may include which of ours is for the compiler
to say: a folder is a Bazel target, and sees what its BUILD file names."""

from __future__ import annotations

import re
from typing import Iterator

from tools.tidy.source_tree import SourceFile, SourceTree, Violation

_GRPC_USERS = (
    "common/service/",
    "common/sources/",
    "receiver_daemon/",
    "sender_daemon/",
    "tests/",
    "tools/bazel/debian/",
    "tools/bench/control_plane/",
    "tools/dwsctl/",
)
# What a header's name matches, and where it may be included; all others may be everywhere.
HOMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"proto/.*\.grpc\.pb\.h", _GRPC_USERS),
    # Everything else works on model values.
    (r"proto/", ("common/delta/objects/manifest", "common/proto_convert/", "common/service/",
                 "common/sources/", "common/transport/shared_fs/manifest", "receiver_daemon/", "sender_daemon/", "tests/", "tools/")),
    (r"absl/", ("common/base/",)),
    (r"catch2/", ("tests/",)),
    (r"CLI/", ("common/service/config/", "common/service/program/", "sender_daemon/", "receiver_daemon/",
               "tools/", "tests/")),
    (r"cuda|cooperative_groups", ("common/memory/cuda/", "tests/common/memory/cuda/")),
    (r"curl/", ("tests/",)),
    (r"event2/", ("common/service/http/",)),
    (r"google/protobuf/", ("common/delta/objects/manifest", "common/proto_convert/",
                          "common/service/grpc/data_message",
                          "common/service/grpc/full_frame_message", "common/service/http/",
                          "common/service/metrics/status_metrics", "tools/dwsctl/", "tests/")),
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
    (r"zlib\.h", ("common/formats/", "tools/dwsctl/report/")),
    (r"xxhash|zstd", ("common/delta/", "common/formats/", "tools/bench/", "tools/checkpoint/", "tests/common/formats/")),
)
_INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def check_file(file: SourceFile) -> Iterator[Violation]:
    for line, text in enumerate(file.lines, 1):
        included = match[1] if (match := _INCLUDE.match(text)) else ""
        for pattern, homes in HOMES:
            if re.match(pattern, included) and not file.path.startswith(homes):
                yield Violation("header-home", file.path, line, f"{included} belongs in {', '.join(homes)}")


def check(tree: SourceTree) -> Iterator[Violation]:
    for file in tree.cpp():
        yield from check_file(file)
