#include "common/transport/same_host/host_id.h"

#include <fstream>

namespace dws {

// Random at every boot, and the same in every container.
std::string HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace dws
