// The file of a secret that a client shows a server: a token, or keys.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// Reads a file that only its owner and group can access. `what`: its content, for messages: "the
// engine's token". FAILED_PRECONDITION: it is accessible to others, no regular file, or larger than
// `size_bytes_max`. Errors as ErrnoError: it cannot be read.
Result<std::string> ReadSecretFile(const std::string& path, std::string_view what,
                                   size_t size_bytes_max);

}  // namespace dws
