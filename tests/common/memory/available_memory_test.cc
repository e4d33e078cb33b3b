#include "common/memory/available_memory.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// The files of a host, or of a container.
class Root {
 public:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  uint64_t Available() const { return AvailableMemoryBytes(folder_.path()); }

 private:
  TempFolder folder_;
};

TEST_CASE("this host has some memory left, and less than all addresses", "[memory]") {
  CHECK(AvailableMemoryBytes() > 0);
  CHECK(AvailableMemoryBytes() < kUnknown);
}

TEST_CASE("without groups what the host has left counts", "[memory]") {
  Root root;
  CHECK(root.Available() == kUnknown);
  root.Write("/proc/meminfo", "MemTotal: 64 kB\nMemFree: 1 kB\nMemAvailable:    5000 kB\n");
  CHECK(root.Available() == 5000 * 1024);
}

TEST_CASE("the least of all groups counts, without what they have cached", "[memory]") {
  Root root;
  root.Write("/proc/meminfo", "MemAvailable: 5000 kB\n");
  root.Write("/proc/self/cgroup", "0::/pod/sender\n");
  root.Write("/sys/fs/cgroup/pod/memory.max", "1000000\n");
  root.Write("/sys/fs/cgroup/pod/memory.current", "400000\n");
  root.Write("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 100000\nactive_file 7\n");
  root.Write("/sys/fs/cgroup/pod/sender/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/pod/sender/memory.current", "300000\n");
  CHECK(root.Available() == 700000);
  root.Write("/sys/fs/cgroup/pod/sender/memory.max", "500000\n");
  CHECK(root.Available() == 200000);
  root.Write("/sys/fs/cgroup/pod/sender/memory.current", "600000\n");
  CHECK(root.Available() == 0);
  root.Write("/sys/fs/cgroup/pod/sender/memory.max", "99000000\n");
  root.Write("/sys/fs/cgroup/pod/memory.max", "99000000\n");
  CHECK(root.Available() == 5000 * 1024);
}

TEST_CASE("a container sees its own group at the mount, whatever its path is", "[memory]") {
  Root root;
  root.Write("/proc/meminfo", "MemAvailable: 5000 kB\n");
  root.Write("/proc/self/cgroup", "11:memory:/docker/0123\n1:name=systemd:/docker/0123\n0::/\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n");
  root.Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n");
  root.Write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
  CHECK(root.Available() == 550000);
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(root.Available() == 5000 * 1024);
}

}  // namespace
}  // namespace dws
