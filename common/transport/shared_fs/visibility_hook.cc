#include "common/transport/shared_fs/visibility_hook.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): only GNU's headers have it

namespace dws::shared {
namespace {

constexpr int kLookMilliseconds = 20;        // how often the end is checked
constexpr std::chrono::seconds kReapMax{2};  // for a command that was killed
constexpr size_t kLineBytesMax = 500;        // of the last line, in a message

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& each : strings) pointers.push_back(each.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentWith(std::vector<std::string> own) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("DWS_SHARED_DIR=") && !text.starts_with("DWS_VERSION=")) {
      own.emplace_back(text);
    }
  }
  return own;
}

// Starts it in its own process group, without our signal mask, with its output in `output`.
Result<pid_t> Spawn(std::vector<std::string> words, std::vector<std::string> environment,
                    const UniqueFd& output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDERR_FILENO);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, words.front().c_str(), &actions, &attributes,
                                   PointersTo(words).data(), PointersTo(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return UnavailableError("cannot start '{}': {}", words.front(),
                            Message(ErrnoError(error, "posix_spawn")));
  }
  return pid;
}

// Reads everything that is available; keeps only the end.
void Drain(const UniqueFd& from, std::string& output) {
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::read(from.get(), buffer.data(), buffer.size());
    if (count <= 0) return;
    output.append(buffer.data(), static_cast<size_t>(count));
    if (output.size() > limits::kSharedHookOutputBytesMax) {
      output.erase(0, output.size() - limits::kSharedHookOutputBytesMax / 2);
    }
  }
}

std::string LastLine(std::string_view output) {
  while (!output.empty() && (output.back() == '\n' || output.back() == '\r')) {
    output.remove_suffix(1);
  }
  if (const size_t line = output.rfind('\n'); line != std::string_view::npos) {
    output.remove_prefix(line + 1);
  }
  return std::string(Utf8Prefix(output, kLineBytesMax));
}

// Returns whether the process has ended. It does not wait without limit: a hung mount may keep the
// process in the kernel.
bool Kill(pid_t pid) {
  ::kill(-pid, SIGKILL);
  const auto until = std::chrono::steady_clock::now() + kReapMax;
  while (::waitpid(pid, nullptr, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    (void)::poll(nullptr, 0, kLookMilliseconds);
  }
  return true;
}

// How it ended. DEADLINE_EXCEEDED, CANCELLED: it was killed, and is `killed` if it has not ended.
Result<int> Await(pid_t pid, pid_t& killed, const UniqueFd& from,
                  std::chrono::milliseconds deadline, const std::function<bool()>& wanted,
                  std::string& output) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  int status = 0;
  bool closed = false;  // by all processes that had it; the command may still run
  while (true) {
    struct pollfd waiting = {.fd = closed ? -1 : from.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&waiting, 1, kLookMilliseconds);
    Drain(from, output);
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) break;
    if (ended < 0 && errno != EINTR) {
      return UnavailableError("how it ended is not known: {}",
                              Message(ErrnoError(errno, "waitpid")));
    }
    closed = closed || (waiting.revents & POLLHUP) != 0;
    const bool late = std::chrono::steady_clock::now() >= until;
    if (!late && (!wanted || wanted())) continue;
    if (!Kill(pid)) killed = pid;
    if (!late) return CancelledError("it was no longer needed and was killed");
    return DeadlineExceededError("it did not end within {} s and was killed", ToSeconds(deadline));
  }
  Drain(from, output);
  return status;
}

}  // namespace

Result<std::vector<std::string>> SplitCommand(std::string_view command) {
  std::vector<std::string> words;
  std::optional<std::string> word;
  char quote = 0;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    const bool escapes = c == '\\' && quote != '\'' && i + 1 < command.size();
    if (escapes && (quote == 0 || command[i + 1] == '"' || command[i + 1] == '\\')) {
      word = word.value_or("") + command[++i];
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        *word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      word = word.value_or("");
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (word.has_value()) words.push_back(*std::exchange(word, std::nullopt));
    } else {
      word = word.value_or("") + c;
    }
  }
  if (quote != 0) return InvalidArgumentError("a quote {} is not closed in: {}", quote, command);
  if (word.has_value()) words.push_back(*std::move(word));
  if (words.empty() || words.front().empty()) {
    return InvalidArgumentError("expected a command, found none");
  }
  return words;
}

std::string WhyNoCommand(const std::string& text) {
  return text.empty() ? "" : std::string(Message(SplitCommand(text).status()));
}

Result<VisibilityHook> VisibilityHook::Make(std::string_view command, std::string shared_dir) {
  if (command.empty()) return VisibilityHook();
  DWS_ASSIGN_OR_RETURN(std::vector<std::string> words, SplitCommand(command));
  return VisibilityHook(std::move(words), std::move(shared_dir));
}

Status VisibilityHook::Run(std::string_view version, std::chrono::milliseconds deadline,
                           const std::function<bool()>& wanted) const {
  if (!given()) return OkStatus();
  if (killed_ > 0 && ::waitpid(killed_, nullptr, WNOHANG) == 0) {
    return UnavailableError("'{}' was killed and has not ended (process {}): does a mount hang?",
                            words_.front(), killed_);
  }
  killed_ = -1;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "cannot make a pipe");
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  // Ours alone must not block: the command's end is another open file description.
  ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
  auto environment =
      EnvironmentWith({"DWS_SHARED_DIR=" + shared_dir_, fmt::format("DWS_VERSION={}", version)});
  DWS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(words_, std::move(environment), to));
  to.reset();
  std::string output;
  const Result<int> ended = Await(pid, killed_, from, deadline, wanted, output);
  const std::string& name = words_.front();
  if (!ended.ok()) {
    return absl::Status(
        ended.status().code(),
        fmt::format("'{}': {}: {}", name, Message(ended.status()), LastLine(output)));
  }
  if (WIFEXITED(*ended) && WEXITSTATUS(*ended) == 0) return OkStatus();
  if (WIFSIGNALED(*ended)) {
    return UnavailableError("'{}' ended by signal {}: {}", name, WTERMSIG(*ended),
                            LastLine(output));
  }
  return UnavailableError("'{}' ended with status {}: {}", name, WEXITSTATUS(*ended),
                          LastLine(output));
}

}  // namespace dws::shared
