// What happens when bytes of a mapped file are not there: another process has truncated it, or a
// write finds the disk full (SIGBUS). Without this the process would die without a word.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/bytes.h"

namespace dws {

// Watches the pages of one mapping. Threads: safe from any; the mapping outlives it.
//
// If the owner looks at lost() before it trusts what was read or written, an access to a page that
// is lost makes it and all pages after it private pages of zeros. For other mappings a line with the
// file's name goes to stderr and the process dies as it would have.
class MappingGuard {
 public:
  // No more than kGuardsMax mappings at a time are watched; for the rest nothing changes.
  static constexpr size_t kGuardsMax = 4096;

  // `owner_looks`: see above.
  MappingGuard(ByteSpan mapping, const std::string& path, bool owner_looks);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Whether pages were lost.
  bool lost() const;

 private:
  size_t slot_;  // kGuardsMax: not watched
};

}  // namespace dws
