#!/bin/bash
# Writes build_commit.h. $1: Bazel's stable status file, which holds the value of
# `--embed_label=COMMIT`.
set -euo pipefail
commit="$(sed -n 's/^BUILD_EMBED_LABEL //p' "$1")"
if [[ ! "$commit" =~ ^[0-9a-f]{7,64}(-modified)?$ ]]; then commit=unknown; fi
cat <<END
// Generated: the commit this was built from.
#pragma once

#include <string_view>

namespace dws {

inline constexpr std::string_view kBuildCommit = "$commit";

}  // namespace dws
END
