// posix_spawn in a process group of its own, so that a kill also ends what the program has started.
#include "tools/dwsctl/report/child_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>

#include "common/base/check.h"
#include "common/base/unique_fd.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): only GNU's headers have it

namespace dws::dwsctl {
namespace {

constexpr int kLookMilliseconds = 20;
constexpr int kReapLooks = 50;            // after a kill
constexpr size_t kMessageBytesMax = 300;  // of a failed program's output

Result<pid_t> Spawn(std::vector<std::string>& words, const UniqueFd& output) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDERR_FILENO);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, words.front().c_str(), &actions, &attributes, pointers.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return NotFoundError("there is no program '{}'", words.front());
  if (error != 0) return ErrnoError(error, fmt::format("cannot start '{}'", words.front()));
  return pid;
}

// Reads what is there; keeps the first `bytes_max`.
void Drain(const UniqueFd& from, size_t bytes_max, std::string& output) {
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::read(from.get(), buffer.data(), buffer.size());
    if (count <= 0) return;
    output.append(buffer.data(), std::min(static_cast<size_t>(count), bytes_max - output.size()));
  }
}

// The status with which it ended; nullopt: it had to be killed.
std::optional<int> Await(pid_t pid, const UniqueFd& from, std::chrono::milliseconds deadline,
                         size_t bytes_max, std::string& output) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  int status = 0;
  while (std::chrono::steady_clock::now() < until) {
    (void)::poll(nullptr, 0, kLookMilliseconds);
    Drain(from, bytes_max, output);
    if (::waitpid(pid, &status, WNOHANG) == pid) {
      Drain(from, bytes_max, output);
      return status;
    }
  }
  ::kill(-pid, SIGKILL);
  for (int i = 0; i < kReapLooks && ::waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
    (void)::poll(nullptr, 0, kLookMilliseconds);
  }
  return std::nullopt;
}

}  // namespace

Result<std::string> OutputOf(std::vector<std::string> words, std::chrono::milliseconds deadline,
                             size_t bytes_max) {
  DWS_CHECK(!words.empty());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "cannot make a pipe");
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  ::fcntl(from.get(), F_SETFL, O_NONBLOCK);  // ours alone: the program has another description
  DWS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(words, to));
  to.reset();
  std::string output;
  const std::optional<int> status = Await(pid, from, deadline, bytes_max, output);
  if (!status.has_value()) {
    return DeadlineExceededError("'{}' did not end within {} ms and was killed", words.front(),
                                 deadline.count());
  }
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return output;
  return UnavailableError("'{}' failed with status {}: {}", words.front(), *status,
                          output.substr(0, kMessageBytesMax));
}

}  // namespace dws::dwsctl
