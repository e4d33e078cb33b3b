// It uses posix_spawn, not fork: a forked child inherits CUDA's state and cannot use it.
#include "tools/gpu_check/exporter/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

extern char** environ;  // NOLINT(readability-redundant-declaration): only GNU's headers have it

namespace dws::gpu_check {
namespace {

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& each : strings) pointers.push_back(each.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentOf(const ChildProcess::Setup& setup) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(setup.environment.begin(), setup.environment.end(),
                                      [&](const auto& variable) { return variable.first == name; });
    if (!replaced) all.push_back(text);
  }
  for (const auto& [name, value] : setup.environment) all.push_back(name + "=" + value);
  return all;
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(const Setup& setup) {
  const std::string program = setup.program.empty() ? "/proc/self/exe" : setup.program;
  std::vector<std::string> arguments = {program};
  arguments.insert(arguments.end(), setup.arguments.begin(), setup.arguments.end());
  std::vector<std::string> environment = EnvironmentOf(setup);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (setup.fd >= 0) ::posix_spawn_file_actions_adddup2(&actions, setup.fd, setup.as);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr,
                                  PointersTo(arguments).data(), PointersTo(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoError(error, fmt::format("cannot start {}", program));
  return ChildProcess(pid);
}

void ChildProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  (void)Wait();
}

Status ChildProcess::Wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OkStatus();
  if (WIFSIGNALED(status)) return InternalError("ended by signal {}", WTERMSIG(status));
  return InternalError("exited with status {}", WEXITSTATUS(status));
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace dws::gpu_check
