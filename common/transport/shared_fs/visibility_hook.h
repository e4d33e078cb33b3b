// An operator's command that runs after a version is written or before a directory is read: for
// mounts of object stores that need a refresh.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace dws::shared {

// Splits a command into words as a shell does: blanks, quotes of both kinds, backslashes. Nothing
// is expanded. INVALID_ARGUMENT: a quote is not closed, or the command has no words.
Result<std::vector<std::string>> SplitCommand(std::string_view command);
// For the check of a flag: why SplitCommand refuses its text; "": it does not, or the text is
// empty.
std::string WhyNoCommand(const std::string& text);

// Lifecycle: made once, run often. Threads: Run by one at a time.
class VisibilityHook {
 public:
  // Makes a hook without a command: Run does nothing.
  VisibilityHook() = default;
  VisibilityHook(std::vector<std::string> words, std::string shared_dir)
      : words_(std::move(words)), shared_dir_(std::move(shared_dir)) {}

  // The hook of a flag's text; without a command if that is empty. Errors of SplitCommand.
  static Result<VisibilityHook> Make(std::string_view command, std::string shared_dir);

  bool given() const { return !words_.empty(); }
  // Runs it until it ends, with DWS_SHARED_DIR and DWS_VERSION in its environment (empty: none).
  // UNAVAILABLE: it could not be started, or failed; the message has its status and its last line.
  // DEADLINE_EXCEEDED: it took longer and was killed with all its children. CANCELLED: it was
  // killed because `wanted`, which is called often, returned false. One that a hung mount keeps
  // from ending is waited for only briefly; until it has ended Run returns UNAVAILABLE.
  Status Run(std::string_view version, std::chrono::milliseconds deadline,
             const std::function<bool()>& wanted = {}) const;

 private:
  std::vector<std::string> words_;
  std::string shared_dir_;
  mutable pid_t killed_ = -1;  // was killed and has not ended; -1: none
};

}  // namespace dws::shared
