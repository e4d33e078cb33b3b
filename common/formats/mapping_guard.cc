// The signal handler reads a fixed table without locks: it runs on the thread that has touched the
// page, whatever that thread was doing.
#include "common/formats/mapping_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "common/base/check.h"

namespace dws {
namespace {

constexpr size_t kNameBytes = 256;

struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0};  // 0: not watched
  std::atomic<size_t> size{0};
  std::atomic<bool> owner_looks{false};
  std::atomic<bool> lost{false};
  std::array<char, kNameBytes> name{};  // written before `begin`
};

// Never destroyed: a thread may still be running when the program ends.
std::array<Slot, MappingGuard::kGuardsMax>& Slots() {
  static auto* const slots = new std::array<Slot, MappingGuard::kGuardsMax>();
  return *slots;
}

struct sigaction previous = {};
uintptr_t page_bytes = 0;

void Say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

// Returns whether the access may be repeated. Replaces all pages from this one to the end of the
// mapping: one call for each page would exhaust the number of mappings that a process may have.
bool Replaced(uintptr_t address, Slot& slot) {
  slot.lost.store(true);
  const uintptr_t first = address & ~(page_bytes - 1);
  void* const at = reinterpret_cast<void*>(first);
  return ::mmap(at, slot.begin.load() + slot.size.load() - first, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at;
}

// The signal as it would be without this file.
void PassOn(int number, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(number, info, context);
    return;
  }
  ::sigaction(SIGBUS, &previous, nullptr);
  // An access is repeated, and raises it again; a signal that a process has sent is not.
  if (info->si_code <= 0) ::raise(number);
}

void OnBusError(int number, siginfo_t* info, void* context) {
  if (info->si_code <= 0) {  // sent by a process: it has no address
    PassOn(number, info, context);
    return;
  }
  const int saved = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& slot : Slots()) {
    const uintptr_t begin = slot.begin.load();
    if (begin == 0 || address < begin || address >= begin + slot.size.load()) continue;
    if (slot.owner_looks.load() && Replaced(address, slot)) {
      errno = saved;
      return;
    }
    Say("fatal: pages of the file ");
    Say(slot.name.data());
    Say(" are gone (SIGBUS): another process has truncated it, or the disk is full\n");
    break;
  }
  errno = saved;
  PassOn(number, info, context);
}

void Install() {
  page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  static_cast<void>(Slots());  // not made by the handler
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  DWS_CHECK(::sigaction(SIGBUS, &action, &previous) == 0);
}

}  // namespace

MappingGuard::MappingGuard(ByteSpan mapping, const std::string& path, bool owner_looks)
    : slot_(kGuardsMax) {
  static std::once_flag installed;
  std::call_once(installed, Install);
  for (size_t i = 0; i < kGuardsMax; ++i) {
    Slot& slot = Slots()[i];
    if (slot.taken.exchange(true)) continue;
    slot_ = i;
    slot.lost.store(false);
    slot.owner_looks.store(owner_looks);
    slot.size.store(mapping.size());
    const size_t length = std::min(path.size(), kNameBytes - 1);
    std::memcpy(slot.name.data(), path.data(), length);
    slot.name[length] = '\0';
    slot.begin.store(reinterpret_cast<uintptr_t>(mapping.data()));
    return;
  }
}

MappingGuard::~MappingGuard() {
  if (slot_ == kGuardsMax) return;
  Slots()[slot_].begin.store(0);
  Slots()[slot_].taken.store(false);
}

bool MappingGuard::lost() const { return slot_ != kGuardsMax && Slots()[slot_].lost.load(); }

}  // namespace dws
