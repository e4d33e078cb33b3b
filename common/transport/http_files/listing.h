// The list of a folder as nginx's `autoindex_format json` writes it. Pure. Untrusted input.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace dws::http_files {

// The names in it, sorted. UNAVAILABLE: it is not such a list, it is larger than 32 MiB, has more
// than limits::kSharedFoldersMax names, or a name that is none of a file or folder.
Result<std::vector<std::string>> ParseListing(std::string_view text);

}  // namespace dws::http_files
