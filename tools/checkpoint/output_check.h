// What is written must not take the place of what is read, nor of what somebody else put there:
// asked before anything is created.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/checkpoint/tensors.h"

namespace dws::checkpoint {

// What is read of an open checkpoint, and where it lies.
std::vector<std::string> PathsOf(const Checkpoint& checkpoint);

// INVALID_ARGUMENT: one of `written` is one of `read`, by whatever names.
Status CheckNotRead(std::span<const std::string> written, std::span<const std::string> read);

// For a delta object that is to be written to `out`, in the place of another at most.
// INVALID_ARGUMENT: as CheckNotRead, of `out` and the names that it has meanwhile. ALREADY_EXISTS:
// something is there, not empty and no delta object. Others: of the file that is there.
Status CheckObjectOutput(const std::string& out, std::span<const std::string> read);

}  // namespace dws::checkpoint
