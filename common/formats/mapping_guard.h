// Handles missing bytes of a mapped file: another process has truncated the file, or a write finds
// the disk full (SIGBUS). Without this, the process would die without a message.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/bytes.h"

namespace dws {

// Watches the pages of one mapping. Threads: safe from any; the mapping outlives it.
//
// If the owner looks at lost() before it trusts what was read or written, an access to a lost page
// replaces it and all pages after it by private pages of zeros. For other mappings the guard writes
// a line with the file's name to stderr, and the process dies as it would without a guard.
class MappingGuard {
 public:
  // At most kGuardsMax mappings are watched at a time; more mappings are not protected.
  static constexpr size_t kGuardsMax = 4096;

  // `owner_looks`: see above.
  MappingGuard(ByteSpan mapping, const std::string& path, bool owner_looks);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Returns whether pages were lost.
  bool lost() const;

 private:
  size_t slot_;  // kGuardsMax: not watched
};

}  // namespace dws
