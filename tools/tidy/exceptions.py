"""What the rules let pass, by name. These lists only shrink: an entry that is not needed any more is a
violation of its own."""

from __future__ import annotations

# Files longer than usual, and how long each may be.
LONG_FILES: dict[str, int] = {
}

# Packages with targets that everybody may use.
PUBLIC_PACKAGES: frozenset[str] = frozenset({
    "clients/python",
    "common/base",
    "common/delta",
    "common/model",
    "common/proto_convert",
    "proto",
    "sender_daemon",
    "tests",
    "tools/bazel",
    "tools/bazel/debian",
    "tools/bazel/remote_coverage_tools",
    "tools/bazel/rules_cc/cc",
})

# Other violations, as (rule, path).
KNOWN: frozenset[tuple[str, str]] = frozenset({
})
