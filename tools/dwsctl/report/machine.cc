// Files of /proc, and programs that may be missing: each that fails is named in the report.
#include "tools/dwsctl/report/machine.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

#include "tools/dwsctl/report/child_output.h"
#include "tools/dwsctl/report/daemon_process.h"

namespace dws::dwsctl {
namespace {

constexpr std::chrono::seconds kProgramMax{10};
constexpr size_t kFileBytesMax = 64 << 10;
constexpr size_t kLogBytesMax = 1 << 20;
constexpr const char* kLogLines = "2000";

// The lines of the first processor that tell machines apart.
std::string FirstProcessor(std::string_view cpuinfo) {
  std::string out;
  const std::string_view first = cpuinfo.substr(0, cpuinfo.find("\n\n"));
  for (const char* const key : {"model name", "cpu family", "model\t", "stepping", "flags"}) {
    const size_t at = first.find(key);
    if (at == std::string_view::npos) continue;
    out += fmt::format("{}\n", first.substr(at, first.find('\n', at) - at));
  }
  return out;
}

Result<std::string> Machine() {
  utsname kernel = {};
  if (::uname(&kernel) != 0) return ErrnoError(errno, "uname");
  std::string text = fmt::format("{} {} {} {} {}\n\n", kernel.sysname, kernel.nodename,
                                 kernel.release, kernel.version, kernel.machine);
  text += fmt::format("processors: {}\n", ::sysconf(_SC_NPROCESSORS_ONLN));
  DWS_ASSIGN_OR_RETURN(const std::string processors,
                       ReadPseudoFile("/proc/cpuinfo", kFileBytesMax));
  text += FirstProcessor(processors) + "\n";
  for (const char* const path : {"/proc/meminfo", "/proc/loadavg", "/proc/pressure/memory",
                                 "/proc/pressure/io", "/etc/os-release"}) {
    const Result<std::string> content = ReadPseudoFile(path, kFileBytesMax);
    text += fmt::format("# {}\n{}\n", path, content.ok() ? *content : Message(content.status()));
  }
  return text;
}

Result<std::string> Process(pid_t pid) {
  std::string text;
  for (const char* const name : {"status", "limits", "cgroup", "smaps_rollup", "io"}) {
    const std::string path = fmt::format("/proc/{}/{}", pid, name);
    const Result<std::string> content = ReadPseudoFile(path, kFileBytesMax);
    text += fmt::format("# {}\n{}\n", path, content.ok() ? *content : Message(content.status()));
  }
  return text;
}

Result<std::string> Log(pid_t pid) {
  const std::string link = fmt::format("/proc/{}/fd/2", pid);
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(link, error).string();
  if (error) return ErrnoError(error.value(), link);
  if (target.starts_with('/') && !target.starts_with("/dev/")) {
    // By the descriptor, which leads to the file also in a container and under another name.
    return ReadTail(link, kLogBytesMax);
  }
  const auto cgroup = ReadPseudoFile(fmt::format("/proc/{}/cgroup", pid), kFileBytesMax);
  const std::string unit = cgroup.ok() ? UnitOf(*cgroup) : "";
  if (unit.empty()) {
    return UnavailableError(
        "process {} logs to {} and runs in no unit dws-*.service: add its log by hand", pid,
        target);
  }
  return OutputOf({"journalctl", "--no-pager", "--output=short-iso", "-n", kLogLines, "-u", unit},
                  kProgramMax, kLogBytesMax);
}

}  // namespace

void AddMachine(const std::vector<std::string>& paths, Report& report) {
  report.Add("machine.txt", Machine());
  // df fails when one of the paths does not exist; the others are printed all the same.
  std::vector<std::string> df = {"sh", "-c", "df -P -k -- \"$@\"; true", "df"};
  df.insert(df.end(), paths.begin(), paths.end());
  report.Add("disk.txt", OutputOf(df, kProgramMax, kFileBytesMax));
  report.Add("gpu.txt",
             OutputOf({"nvidia-smi", "-q", "-d", "MEMORY,UTILIZATION,ECC,POWER,CLOCK,COMPUTE,PIDS"},
                      kProgramMax, kLogBytesMax));
}

void AddProcess(pid_t pid, Report& report) {
  report.Add("process.txt", Process(pid));
  report.Add("log.txt", Log(pid));
}

}  // namespace dws::dwsctl
