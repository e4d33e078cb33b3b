// A command that an operator has run after a version was written or before a directory is looked
// at: for mounts of object stores that have to be told.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace dws::shared {

// Words of a command as a shell splits them: blanks, quotes of both kinds, backslashes. Nothing is
// expanded. INVALID_ARGUMENT: a quote is not closed, or there is no word.
Result<std::vector<std::string>> SplitCommand(std::string_view command);

// Lifecycle: made once, run often. Threads: Run by one at a time.
class VisibilityHook {
 public:
  // No words: Run does nothing.
  VisibilityHook() = default;
  VisibilityHook(std::vector<std::string> words, std::string shared_dir)
      : words_(std::move(words)), shared_dir_(std::move(shared_dir)) {}

  bool given() const { return !words_.empty(); }
  // Runs it to its end, with DWS_SHARED_DIR and DWS_VERSION in its environment (empty: none).
  // UNAVAILABLE: it could not be started, or failed; with its status and the last line it wrote.
  // DEADLINE_EXCEEDED: it took longer, and was killed with all its children. CANCELLED: so it was
  // as `wanted`, asked often, returned false.
  Status Run(std::string_view version, std::chrono::milliseconds deadline,
             const std::function<bool()>& wanted = {}) const;

 private:
  std::vector<std::string> words_;
  std::string shared_dir_;
};

}  // namespace dws::shared
