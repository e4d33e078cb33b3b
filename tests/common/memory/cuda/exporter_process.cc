#include "tests/common/memory/cuda/exporter_process.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/common/memory/cuda/export_scenarios.h"

namespace dws::cuda {
namespace {

constexpr size_t kDescriptorsMax = 64;
constexpr size_t kTextBytesMax = 180'000;  // of one message
constexpr int kWaitSeconds = 60;

void SendText(int socket, const std::string& text, const std::vector<UniqueFd>& descriptors = {}) {
  REQUIRE((text.size() <= kTextBytesMax && descriptors.size() <= kDescriptorsMax));
  iovec part = {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    for (size_t i = 0; i < descriptors.size(); ++i) {
      const int fd = descriptors[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  REQUIRE(::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

// Returns "" when the other side has closed.
std::string ReceiveText(int socket, std::vector<UniqueFd>* descriptors = nullptr) {
  std::string text(kTextBytesMax, '\0');
  iovec part = {.iov_base = text.data(), .iov_len = text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= header->cmsg_len; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (descriptors != nullptr) descriptors->push_back(std::move(owned));
    }
  }
  return text;
}

std::string Describe(const ExportedMemory& exported, const std::vector<DeviceRange>& ranges) {
  std::ostringstream text;
  text << "exported " << exported.regions.size() << ' ' << ranges.size() << '\n';
  for (const RegionHandle& region : exported.regions) {
    text << region.cuda->device_uuid << ' ' << region.size_bytes << ' '
         << region.cuda->chunks.size() << '\n';
    for (const CudaChunkHandle& chunk : region.cuda->chunks) {
      text << static_cast<int>(chunk.kind) << ' ' << chunk.size_bytes << ' ' << chunk.opens_pool
           << ' ' << chunk.bytes.size();
      for (const char byte : chunk.bytes) text << ' ' << static_cast<int>(byte);
      text << '\n';
    }
  }
  for (size_t r = 0; r < ranges.size(); ++r) {
    text << exported.places[r].region << ' ' << exported.places[r].offset_bytes << ' '
         << ranges[r].size_bytes << '\n';
  }
  return text.str();
}

Exported Parse(const std::string& description) {
  std::istringstream text(description);
  Exported exported;
  std::string word;
  size_t regions = 0;
  size_t ranges = 0;
  text >> word >> regions >> ranges;
  if (word != "exported") {
    exported.error = description.empty() ? "the exporter is gone" : description;
    return exported;
  }
  for (size_t r = 0; r < regions; ++r) {
    RegionHandle region{.size_bytes = 0, .cuda = CudaRegionHandle{}};
    size_t chunks = 0;
    text >> region.cuda->device_uuid >> region.size_bytes >> chunks;
    for (size_t c = 0; c < chunks; ++c) {
      CudaChunkHandle chunk;
      int kind = 0;
      size_t size = 0;
      text >> kind >> chunk.size_bytes >> chunk.opens_pool >> size;
      chunk.kind = static_cast<CudaChunkHandle::Kind>(kind);
      for (int byte = 0; chunk.bytes.size() < size && text >> byte;) {
        chunk.bytes.push_back(static_cast<char>(byte));
      }
      region.cuda->chunks.push_back(chunk);
    }
    exported.regions.push_back(region);
  }
  for (size_t r = 0; r < ranges; ++r) {
    ExportedMemory::Place place;
    size_t size = 0;
    text >> place.region >> place.offset_bytes >> size;
    exported.places.push_back(place);
    exported.sizes.push_back(size);
  }
  REQUIRE(text.good());
  return exported;
}

CudaDevicePtr DeviceOf(const std::string& uuid) {
  Result<CudaDevicePtr> device = CudaDevice::Open(LoadDriver(), uuid, KernelImage());
  INFO(ToString(device.status()));
  REQUIRE(device.ok());
  return *device;
}

std::string CheckRanges(const CudaDevice& device, const OwnedMemory& memory, uint8_t turn) {
  for (size_t r = 0; r < memory.ranges.size(); ++r) {
    const DeviceRange& range = memory.ranges[r];
    if (ReadDevice(device, range.address, range.size_bytes) != Pattern(r, range.size_bytes, turn)) {
      return fmt::format("range {} is not what was written", r);
    }
  }
  return "right";
}

// The program of the other process; see ExporterProcess.
TEST_CASE("the exporter of other tests", "[.exporter]") {
  const char* const socket_text = std::getenv("DWS_EXPORTER_SOCKET");
  const char* const scenario = std::getenv("DWS_EXPORTER_SCENARIO");
  const char* const uuid = std::getenv("DWS_EXPORTER_UUID");
  if (socket_text == nullptr || scenario == nullptr || uuid == nullptr) return;
  const UniqueFd socket(std::atoi(socket_text));
  const CudaDevicePtr device = DeviceOf(uuid);
  const Result<std::unique_ptr<OwnedMemory>> memory = MakeScenario(scenario, device);
  if (!memory.ok()) return SendText(socket.get(), ToString(memory.status()));
  for (size_t r = 0; r < (*memory)->ranges.size(); ++r) {
    const DeviceRange& range = (*memory)->ranges[r];
    WriteDevice(*device, range.address, Pattern(r, range.size_bytes));
  }
  {
    const Result<ExportedMemory> exported = ExportMemory(*device, (*memory)->ranges);
    if (!exported.ok()) return SendText(socket.get(), ToString(exported.status()));
    SendText(socket.get(), Describe(*exported, (*memory)->ranges), exported->descriptors);
  }
  for (std::string order; !(order = ReceiveText(socket.get())).empty();) {
    SendText(socket.get(),
             CheckRanges(*device, **memory, static_cast<uint8_t>(std::atoi(order.c_str()))));
  }
}

}  // namespace

std::vector<UniqueFd> Exported::TakeDescriptors(const RegionHandle& region) {
  const auto count = static_cast<ptrdiff_t>(region.descriptor_count());
  REQUIRE(static_cast<ptrdiff_t>(descriptors.size()) >= count);
  std::vector<UniqueFd> taken(std::make_move_iterator(descriptors.begin()),
                              std::make_move_iterator(descriptors.begin() + count));
  descriptors.erase(descriptors.begin(), descriptors.begin() + count);
  return taken;
}

ExporterProcess::ExporterProcess(const std::string& scenario, const std::string& uuid,
                                 const std::string& visible) {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  socket_.reset(ends[0]);
  UniqueFd theirs(ends[1]);
  const timeval timeout = {.tv_sec = kWaitSeconds, .tv_usec = 0};
  for (const int end : ends) {
    const int buffer = 2 * static_cast<int>(kTextBytesMax);
    ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
  }
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    ::close(ends[0]);
    ::setenv("DWS_EXPORTER_SOCKET", std::to_string(ends[1]).c_str(), 1);
    ::setenv("DWS_EXPORTER_SCENARIO", scenario.c_str(), 1);
    ::setenv("DWS_EXPORTER_UUID", uuid.c_str(), 1);
    if (!visible.empty()) ::setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
    // Another reporter, so that tools/count_tests.py does not count this case in the log.
    ::execl("/proc/self/exe", "exporter", "the exporter of other tests", "--reporter", "compact",
            nullptr);
    ::_exit(127);
  }
}

ExporterProcess::~ExporterProcess() { Kill(); }

void ExporterProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Exported ExporterProcess::Receive() const {
  std::vector<UniqueFd> descriptors;
  Exported exported = Parse(ReceiveText(socket_.get(), &descriptors));
  exported.descriptors = std::move(descriptors);
  return exported;
}

std::string ExporterProcess::Verify(uint8_t turn) const {
  SendText(socket_.get(), std::to_string(turn));
  return ReceiveText(socket_.get());
}

}  // namespace dws::cuda
