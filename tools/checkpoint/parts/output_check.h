// An output must not replace an input, nor a foreign file. These checks run before anything is
// created.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/checkpoint/parts/tensors.h"

namespace dws::checkpoint {

// The path of an open checkpoint and the paths of its files.
std::vector<std::string> PathsOf(const Checkpoint& checkpoint);

// INVALID_ARGUMENT: one of `written` is the same file as one of `read`, even under another name.
Status CheckNotRead(std::span<const std::string> written, std::span<const std::string> read);

// Checks that a delta object may be written to `out`, which may replace only another delta object.
// INVALID_ARGUMENT: as CheckNotRead, for `out` and its temporary names. ALREADY_EXISTS: `out`
// exists, and is neither an empty file nor a delta object. Other errors come from reading that
// file.
Status CheckObjectOutput(const std::string& out, std::span<const std::string> read);

}  // namespace dws::checkpoint
