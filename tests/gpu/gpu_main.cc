// The main of gpu_tests: other folders' tests, on the machine's device. Each test case
// prints one line of gpu_check's results to stdout, for the section that gpu_check names in the
// environment; failures go to stderr too. Arguments are Catch2's.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#define CATCH_CONFIG_RUNNER
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CATCH_CONFIG_NO_POSIX_SIGNALS  // the sanitizer reports faults
#endif
#include <catch2/catch.hpp>

#include "common/memory/cuda/cuda_device.h"
#include "tests/fakes/cuda/device_memory.h"
#include "tools/gpu_check/report/results.h"

namespace {

std::string SectionName() {
  const char* const name = std::getenv(dws::gpu_check::kSectionVariable);
  return name != nullptr ? name : "tests";
}

class LinePerTest final : public Catch::StreamingReporterBase<LinePerTest> {
 public:
  using StreamingReporterBase::StreamingReporterBase;

  static std::string getDescription() { return "a line of gpu_check's results for each test"; }

  void assertionStarting(const Catch::AssertionInfo&) override {}

  bool assertionEnded(const Catch::AssertionStats& stats) override {
    const Catch::AssertionResult& result = stats.assertionResult;
    // A test that cannot run on this device warns.
    if (result.getResultType() == Catch::ResultWas::Warning) skipped_ = result.getMessage().c_str();
    if (result.isOk()) return true;
    const Catch::SourceLineInfo& at = result.getSourceInfo();
    const std::string failure = std::string(at.file) + ":" + std::to_string(at.line) + ": " +
                                result.getExpandedExpression() + " " +
                                std::string(result.getMessage().c_str());
    if (first_failure_.empty()) first_failure_ = failure;
    std::fprintf(stderr, "%s\n", failure.c_str());
    for (const Catch::MessageInfo& info : stats.infoMessages) {
      std::fprintf(stderr, "  %s\n", info.message.c_str());
    }
    return true;
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    // Hidden test cases are the other processes of tests.
    if (!stats.testInfo.isHidden()) Report(stats);
    first_failure_.clear();
    skipped_.clear();
    StreamingReporterBase::testCaseEnded(stats);
  }

 private:
  void Report(const Catch::TestCaseStats& stats) const {
    const dws::cuda::CudaDevicePtr device = dws::cuda::TestDevice();
    dws::gpu_check::Results results(
        SectionName(), device != nullptr && device->name().find("Fake") != std::string::npos);
    const Catch::Counts& assertions = stats.totals.assertions;
    constexpr std::string_view kSkipped = "skipped: ";
    if (assertions.failed == 0 && skipped_.starts_with(kSkipped)) {
      results.Skipped(stats.testInfo.name, skipped_.substr(kSkipped.size()));
    } else if (assertions.allOk()) {
      results.Passed(stats.testInfo.name);
    } else {
      results.Failed(stats.testInfo.name,
                     dws::InternalError("{} of {} assertions failed, first {}", assertions.failed,
                                        assertions.total(), first_failure_));
    }
  }

  std::string first_failure_;
  std::string skipped_;
};
CATCH_REGISTER_REPORTER("lines", LinePerTest)

}  // namespace

int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().warnings = Catch::WarnAbout::NoTests;
  session.configData().reporterName = "lines";
  const int usage_error = session.applyCommandLine(argc, argv);
  if (usage_error != 0) return usage_error;
  return session.run();
}
