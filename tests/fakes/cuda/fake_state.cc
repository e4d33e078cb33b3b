#include "tests/fakes/cuda/fake_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace dws::cuda {
namespace {

thread_local FakeDevice* current_device = nullptr;
thread_local double return_at = 0;  // on the clock

// "symbol:n[:error]" of DWS_FAKE_CUDA_FAIL: whether this call is the nth.
DriverResult InjectedFailure(State& state, const char* symbol) {
  const std::string list = Variable("DWS_FAKE_CUDA_FAIL", "");
  if (list.empty()) return DriverResult::kSuccess;
  const int number = ++state.calls[symbol];
  size_t at = 0;
  while (at < list.size()) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string entry = list.substr(at, end - at);
    at = end + 1;
    char name[128] = {};
    int nth = 0;
    int error = 999;
    if (std::sscanf(entry.c_str(), "%127[^:]:%d:%d", name, &nth, &error) >= 2 &&
        std::strcmp(name, symbol) == 0 && nth == number) {
      return static_cast<DriverResult>(error);
    }
  }
  return DriverResult::kSuccess;
}

// Waits as DWS_FAKE_CUDA_HOLD says; the other threads' calls go on.
Mutex& AfterHold(const char* symbol) {
  const std::string hold = Variable("DWS_FAKE_CUDA_HOLD", "");
  const size_t colon = hold.find(':');
  if (colon != std::string::npos && hold.compare(0, colon, symbol) == 0) {
    const std::string path = hold.substr(colon + 1);
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.valid()) ::flock(file.get(), LOCK_SH);
  }
  return TheState().mutex;
}

void ProtectAll(int protection) {
  if (!Guarded()) return;
  for (const auto& [base, memory] : TheState().memories) {
    if (memory.accessible) {
      ::mprotect(reinterpret_cast<void*>(base), memory.size, protection);  // NOLINT
    }
  }
}

}  // namespace

State& TheState() {
  static State* const state =
      new State;  // never destroyed: the driver is used until the process ends
  return *state;
}

FakeDevice* CurrentDevice() { return current_device; }
void SetCurrentDevice(FakeDevice* device) { current_device = device; }

std::string Variable(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

bool Guarded() { return Variable("DWS_FAKE_CUDA_GUARD", "0") == "1"; }

Call::Call(const char* symbol, Needs needs) : lock_(AfterHold(symbol)) {
  State& state = TheState();
  wait_.clock = state.clock;
  return_at = 0;
  if (state.clock != nullptr) state.clock->Enter();
  result_ = InjectedFailure(state, symbol);
  if (result_ != DriverResult::kSuccess) return;
  if (needs != Needs::kNothing && !state.initialised) {
    result_ = DriverResult::kNotInitialized;
  } else if (needs == Needs::kContext &&
             (current_device == nullptr || current_device->context_references == 0)) {
    result_ = DriverResult::kInvalidContext;
  }
}

Call::~Call() {
  if (wait_.clock != nullptr) wait_.clock->Leave();
}

Call::Wait::~Wait() {
  if (clock != nullptr) clock->Sleep(return_at);
}

void ReturnAt(double time) { return_at = std::max(return_at, time); }

FakeDevice* State::DeviceOfNumber(int number) {
  for (const auto& device : devices) {
    if (device->number == number) return device.get();
  }
  return nullptr;
}

int State::OrdinalOf(int number) {
  for (size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
    if (devices[ordinal]->number == number) return static_cast<int>(ordinal);
  }
  return -1;
}

FakeMemory* State::Find(uint64_t address) {
  auto after = memories.upper_bound(address);
  if (after == memories.begin()) return nullptr;
  FakeMemory& memory = std::prev(after)->second;
  return address - memory.base < memory.size ? &memory : nullptr;
}

bool State::Accessible(uint64_t address, uint64_t size) {
  while (size > 0) {
    const FakeMemory* const memory = Find(address);
    if (memory == nullptr || !memory->accessible) return false;
    const uint64_t here = std::min(size, memory->base + memory->size - address);
    // Only VMM chunks may be adjacent on purpose.
    if (here < size && memory->kind != FakeMemory::Kind::kChunk) return false;
    address += here;
    size -= here;
  }
  return true;
}

bool State::InHost(uint64_t address, uint64_t size) {
  auto after = host.upper_bound(address);
  if (after == host.begin()) return false;
  const auto& [base, bytes] = *std::prev(after);
  return address - base < bytes && size <= bytes - (address - base);
}

void State::RunAll() {
  for (const auto& [handle, stream] : streams) stream->RunUpTo(stream->asked);
  if (clock != nullptr) ReturnAt(clock->WaitForAll());
}

void State::TakeTime(uint64_t bytes, double seconds) {
  if (clock != nullptr) ReturnAt(clock->TakeMemory(bytes, seconds));
}

UniqueFd MakeMemory(const char* what, uint64_t size, int device, int handle_types, uint64_t id) {
  char name[128];
  std::snprintf(name, sizeof(name), "dws-fake-cuda:%s:%d:%d:%d:%d", what, device, handle_types,
                static_cast<int>(::getpid()), static_cast<int>(id));
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) fd.reset();
  return fd;
}

bool ReadName(int fd, const char* what, int (&numbers)[4]) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  char name[256] = {};
  if (::readlink(path, name, sizeof(name) - 1) <= 0) return false;
  const std::string format = std::string("/memfd:dws-fake-cuda:") + what + ":";
  return std::strncmp(name, format.c_str(), format.size()) == 0 &&
         std::sscanf(name + format.size(), "%d:%d:%d:%d", &numbers[0], &numbers[1], &numbers[2],
                     &numbers[3]) == 4;
}

uint64_t InodeOf(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

uint64_t MapMemory(int fd, uint64_t size, uint64_t at, bool accessible) {
  const int protection = accessible && !Guarded() ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* const mapped = ::mmap(reinterpret_cast<void*>(at), size, protection,  // NOLINT
                              MAP_SHARED | (at != 0 ? MAP_FIXED : 0), fd, 0);
  return mapped == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(mapped);
}

UniqueFd OpenWire(const WireHandle& handle) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
  UniqueFd fd(::open(path, O_RDWR | O_CLOEXEC));
  if (fd.valid() && InodeOf(fd.get()) != handle.inode) fd.reset();  // freed, and the number reused
  return fd;
}

Access::Access() {
  if (TheState().access_depth++ == 0) ProtectAll(PROT_READ | PROT_WRITE);
}
Access::~Access() {
  if (--TheState().access_depth == 0) ProtectAll(PROT_NONE);
}

}  // namespace dws::cuda
