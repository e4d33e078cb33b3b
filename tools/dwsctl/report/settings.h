// What a daemon was told by flags, environment and file, without secrets.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/dwsctl/report/redactor.h"

namespace dws::dwsctl {

// A daemon's settings as a report shows them. Lifecycle: made once. Threads: one.
class DaemonSettings {
 public:
  // `redactor` learns every value that is left out; it must outlive this.
  explicit DaemonSettings(Redactor& redactor) : redactor_(redactor) {}

  // The layers, the strongest first. Pure, apart from the redactor.
  void AddFlags(const std::vector<std::string>& words);
  void AddEnvironment(const std::vector<std::string>& variables);
  void AddFile(const std::string& path, std::string_view content);
  // A line that says what is missing.
  void AddNote(std::string_view note);

  // The value in effect; "": none was given. It may hold a secret.
  std::string ValueOf(std::string_view name) const;
  // A line for each value, under the layer that it is of.
  const std::string& text() const { return text_; }

 private:
  void Add(const std::string& shown_name, const std::string& name, const std::string& value);

  Redactor& redactor_;
  std::map<std::string, std::string, std::less<>> values_;
  std::string text_;
};

// Reads the settings of process `pid`; a file that cannot be read is named in the text. Also learns
// what is in the files of keys that this user can read. PERMISSION_DENIED: this user is neither
// root nor the daemon's own. Errors as ErrnoError: /proc/PID cannot be read.
Result<DaemonSettings> ReadSettings(pid_t pid, Redactor& redactor);

}  // namespace dws::dwsctl
