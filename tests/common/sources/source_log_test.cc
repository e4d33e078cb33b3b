// What is logged of sources that are passed over.
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/unique_fd.h"
#include "tests/common/sources/chain_case.h"

namespace dws {
namespace {

// What this process logs as long as it lives.
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

}  // namespace

TEST_CASE("a source that is passed over is logged once, until it works or fails otherwise",
          "[sources]") {
  ChainCase it;
  it.second.delta_bytes = 1;
  SourceChain chain = it.Chain({&it.first, &it.second});
  LogLines log;
  // Returns how many lines three deltas lead to while the first source does this.
  const auto warned = [&](Status fails) {
    it.first.fails = std::move(fails);
    for (int i = 0; i < 3; ++i) REQUIRE(it.Object(chain).ok());
    return log.Count(" W test source_passed_over ");
  };
  CHECK(warned(UnavailableError("away")) == 1);
  CHECK(warned(UnavailableError("away for another reason")) == 0);
  CHECK(warned(DataLossError("damaged")) == 1);
  CHECK(warned(OkStatus()) == 0);  // it does not have it, and works
  CHECK(warned(DataLossError("damaged")) == 1);
  // Full tensors, and other senders, are another matter.
  it.first.blocks_max = 0;
  REQUIRE(it.Full(chain).ok());
  REQUIRE(it.Full(chain).ok());
  CHECK(log.Count(" W test source_passed_over ") == 1);
  it.target.ranks[0].sender = SenderIndex(1);
  CHECK(warned(DataLossError("damaged")) == 1);
  // That a source does not suit is no fault.
  it.first.fails = FailedPreconditionError("on another host");
  REQUIRE(it.Object(chain).ok());
  REQUIRE(it.Object(chain).ok());
  CHECK(log.Count(" I test source_passed_over ") == 1);
}

}  // namespace dws
