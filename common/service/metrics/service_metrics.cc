#include "common/service/metrics/service_metrics.h"

#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/status.h"
#include "common/service/build_version.h"

namespace dws {
namespace {

double Seconds(clockid_t clock) {
  timespec now = {};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The 22nd field of /proc/self/stat is the start time in ticks since boot. The second field, the
// name, is in parentheses and may hold spaces, so the fields are counted from the last ')'.
double StartSeconds() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  // 0 when /proc is hidden.
  const double since_boot =
      std::strtod(field.c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return Seconds(CLOCK_REALTIME) - Seconds(CLOCK_BOOTTIME) + since_boot;
}

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0;
  double resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double OpenDescriptors() {
  std::error_code error;  // /proc may be hidden; then the count is 0
  std::filesystem::directory_iterator entries("/proc/self/fd", error);
  double count = 0;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    ++count;
  }
  return count;
}

void CollectProcess(Scrape& scrape, double start_seconds) {
  scrape.Gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.",
               ResidentBytes());
  scrape.Counter("process_cpu_seconds_total", "Processor time, user and system.",
                 Seconds(CLOCK_PROCESS_CPUTIME_ID));
  scrape.Gauge("process_open_fds", "Open file descriptors.", OpenDescriptors());
  scrape.Gauge("process_start_time_seconds", "When the process started, since 1970.",
               start_seconds);
}

}  // namespace

void AddServiceMetrics(Metrics& metrics) {
  metrics.OnCollect([start = StartSeconds()](Scrape& scrape) {
    CollectProcess(scrape, start);
    const Build& build = ThisBuild();
    scrape.Gauge("dws_build_info", "Always 1; the labels say which build this is.", 1,
                 {{"version", std::string(build.version)},
                  {"commit", std::string(build.commit)},
                  {"protocol", fmt::format("{}.{}", build.protocol_major, build.protocol_minor)}});
  });
}

}  // namespace dws
