// What a test's process logs, which goes to stderr otherwise.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "common/base/log/log.h"
#include "common/base/unique_fd.h"

namespace dws {

// Takes the log for its lifetime. One at a time.
class LogLines {
 public:
  LogLines() {
    REQUIRE(::dup2(file_.get(), STDERR_FILENO) == STDERR_FILENO);
    InitLog("test", LogLevel::kInfo, LogFormat::kText);
  }
  ~LogLines() {
    SetLogLevel(LogLevel::kError);
    ::dup2(stderr_.get(), STDERR_FILENO);
  }

  // How many lines have `text` that had not been counted before.
  size_t Count(std::string_view text) {
    std::string lines(size_t{1} << 16, '\0');
    const ssize_t size = ::pread(file_.get(), lines.data(), lines.size(), read_);
    REQUIRE(size >= 0);
    read_ += size;
    size_t count = 0;
    for (size_t at = lines.find(text); at != std::string::npos; at = lines.find(text, at + 1)) {
      ++count;
    }
    return count;
  }

 private:
  const UniqueFd file_{::memfd_create("log", MFD_CLOEXEC)};
  const UniqueFd stderr_{::dup(STDERR_FILENO)};
  off_t read_ = 0;
};

}  // namespace dws
