#include "tools/gpu_check/child_section.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "tools/gpu_check/exporter/exporter.h"

namespace dws::gpu_check {
namespace {

// Complete lines of `text` are results, or text for the user (seeds); an incomplete line stays in
// `text`.
void TakeLines(std::string& text, std::vector<CheckResult>& results) {
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
    const std::string line = text.substr(0, end);
    text.erase(0, end + 1);
    Result<CheckResult> result = FromLine(line);
    fmt::print(result.ok() ? stdout : stderr, "{}\n", line);
    std::fflush(stdout);
    if (result.ok()) results.push_back(*std::move(result));
  }
}

// Reads until it closes its output, or the time is over.
Status Follow(int output, const SectionRun& run, std::vector<CheckResult>& results) {
  const RealClock clock;
  const TimePoint end = clock.Now() + std::chrono::seconds(run.seconds_max);
  std::string text;
  char part[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - clock.Now());
    pollfd waited = {.fd = output, .events = POLLIN, .revents = 0};
    if (left.count() <= 0) {
      return DeadlineExceededError("did not finish within {} s", run.seconds_max);
    }
    if (::poll(&waited, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t size = ::read(output, part, sizeof(part));
    if (size == 0) return OkStatus();
    if (size < 0 && errno != EINTR) return ErrnoError(errno, "cannot read what it prints");
    if (size > 0) text.append(part, static_cast<size_t>(size));
    TakeLines(text, results);
  }
}

Status RunAndFollow(const SectionRun& run, std::vector<CheckResult>& results) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "cannot make a pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  char self[4096] = {};
  if (::readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
    return ErrnoError(errno, "cannot read /proc/self/exe");
  }
  DWS_ASSIGN_OR_RETURN(ChildProcess child,
                       ChildProcess::Start({.program = run.program,
                                            .arguments = run.arguments,
                                            .environment = {{kProgramVariable, self},
                                                            {kSectionVariable, run.section}},
                                            .fd = writing.get(),
                                            .as = STDOUT_FILENO}));
  writing.reset();
  const size_t before = results.size();
  DWS_RETURN_IF_ERROR(Follow(reading.get(), run, results));
  const Status ended = child.Wait();
  // Its failed checks give more detail than its exit status.
  const bool told = std::any_of(
      results.begin() + static_cast<ptrdiff_t>(before), results.end(),
      [](const CheckResult& result) { return result.verdict == CheckResult::Verdict::kFailed; });
  if (results.size() == before) return InternalError("printed no results");
  return told ? OkStatus() : ended;
}

}  // namespace

void RunInChild(const SectionRun& run, std::vector<CheckResult>& results) {
  fmt::print(stderr, "{} ...\n", run.section);
  const Status status = RunAndFollow(run, results);
  if (status.ok()) return;
  const CheckResult failed{.section = run.section,
                           .name = "the section as a whole",
                           .verdict = CheckResult::Verdict::kFailed,
                           .note = ToString(status)};
  fmt::print("{}\n", ToLine(failed, false));
  results.push_back(failed);
}

}  // namespace dws::gpu_check
