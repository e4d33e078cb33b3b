// A temporary folder for a test, with a path short enough for socket files (Bazel's TEST_TMPDIR is
// not).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/check.h"

namespace dws {

// Removed with all its content by the destructor.
class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/dws-test-XXXXXX";
    DWS_CHECK(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace dws
