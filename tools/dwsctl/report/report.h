// What `dwsctl report` has collected: named texts, and why others are missing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/dwsctl/report/redactor.h"

namespace dws::dwsctl {

// The most that a report has of a part. A larger one is cut, and ends with a line that says so.
inline constexpr size_t kPartBytesMax = 4 << 20;

// Lifecycle: parts are added, then it is written once. Threads: one.
class Report {
 public:
  struct Part {
    std::string name;  // a file's name
    std::string text;
  };

  // Adds a text, or why there is none.
  void Add(const std::string& name, Result<std::string> text);

  // What was learned here is left out of all parts, also of those that were added before.
  Redactor& redactor() { return redactor_; }

  // All parts without secrets, and "summary.txt", which lists them and why others are missing.
  std::vector<Part> Cleaned() const;
  // The same summary, for people; without secrets.
  std::string Summary() const;
  // {"path", "parts": [{"name", "bytes"} or {"name", "error"}]}, with a line end.
  std::string SummaryJson(const std::string& path) const;

 private:
  struct Missing {
    std::string name;
    std::string why;
  };

  Redactor redactor_;
  std::vector<Part> parts_;
  std::vector<Missing> missing_;
};

// A tar.gz of the parts, in a folder of that name. INTERNAL: zlib's error.
Result<std::string> TarGz(const std::vector<Report::Part>& parts, const std::string& folder,
                          int64_t unix_seconds);

// Writes the parts as files of a new folder, or, if `path` ends in .tar.gz or .tgz, as an archive.
// ALREADY_EXISTS: there is something at `path`. Errors as FileSystem.
Status WriteReport(const std::vector<Report::Part>& parts, const std::string& path,
                   int64_t unix_seconds);

}  // namespace dws::dwsctl
