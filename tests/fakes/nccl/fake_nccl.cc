// A libnccl.so.2 for tests on machines without a GPU: real processes (or threads), real bytes over
// loopback TCP, with the properties that make NCCL hard to use. Device memory is the fake driver's
// (tests/fakes/cuda), which copies it; without a stream it is memory of the process. A broadcast
// does not wait in its stream: it is in progress until its bytes have arrived.
//
// As with NCCL: only the rendezvous of the ranks and abort block; abort is always possible; a rank
// that is lost makes the others wait forever, until they abort; the root is done once its bytes are
// sent.
//
// FAKE_NCCL_VERSION=22809 sets the result of ncclGetVersion.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/threads/mutex.h"
#include "common/transport/nccl/nccl_api.h"

namespace dws::nccl {
namespace {

constexpr int kPollMs = 2;

// Connections buffer little: a rank that does not receive stalls the root, as with NCCL.
int MakeSocket() {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int bytes = 64 << 10;
  setsockopt(made, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  setsockopt(made, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  return made;
}

// Where the root of an id waits for the others.
class Rendezvous {
 public:
  static Rendezvous& Instance() {
    static Rendezvous instance;
    return instance;
  }
  uint16_t Listen() {
    const int listener = MakeSocket();
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
    if (listen(listener, 128) != 0) std::abort();
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    const uint16_t port = ntohs(address.sin_port);
    MutexLock lock(mutex_);
    listeners_[port] = listener;
    return port;
  }
  int Take(uint16_t port) {
    MutexLock lock(mutex_);
    const auto found = listeners_.find(port);
    if (found == listeners_.end()) return -1;
    const int listener = found->second;
    listeners_.erase(found);
    return listener;
  }

 private:
  Mutex mutex_;
  std::map<uint16_t, int> listeners_ GUARDED_BY(mutex_);
};

uint16_t PortOf(const NcclUniqueId& id) {
  return LoadLe<uint16_t>(std::as_bytes(std::span(id.bytes)).data());
}

// The driver that the program has loaded, for copying bytes.
struct Driver {
  int (*get_context)(void**) = nullptr;
  int (*set_context)(void*) = nullptr;
  int (*to_device)(uint64_t, const void*, size_t) = nullptr;
  int (*to_host)(void*, uint64_t, size_t) = nullptr;

  static const Driver& Loaded() {
    static const Driver driver = [] {
      void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
      if (library == nullptr) std::abort();
      Driver found;
      Find(library, "cuCtxGetCurrent", found.get_context);
      Find(library, "cuCtxSetCurrent", found.set_context);
      Find(library, "cuMemcpyHtoD_v2", found.to_device);
      Find(library, "cuMemcpyDtoH_v2", found.to_host);
      return found;
    }();
    return driver;
  }

 private:
  template <typename Function>
  static void Find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) std::abort();
  }
};

// One broadcast of a rank. `context`: of device memory, which is copied through `bytes`.
struct Work {
  uint64_t address = 0;
  void* context = nullptr;
  std::vector<std::byte> bytes;

  // On the caller's thread, after the stream's work so far.
  static Work Make(void* memory, size_t count, bool on_device, bool read) {
    Work work{.address = reinterpret_cast<uint64_t>(memory),
              .bytes = std::vector<std::byte>(count)};
    if (on_device && Driver::Loaded().get_context(&work.context) != 0) std::abort();
    if (!read) return work;
    if (!on_device) std::memcpy(work.bytes.data(), memory, count);
    if (on_device && Driver::Loaded().to_host(work.bytes.data(), work.address, count) != 0) {
      std::abort();
    }
    return work;
  }
  void Write() const {
    if (context == nullptr) {
      std::memcpy(reinterpret_cast<void*>(address), bytes.data(), bytes.size());
      return;
    }
    if (Driver::Loaded().set_context(context) != 0) std::abort();
    if (Driver::Loaded().to_device(address, bytes.data(), bytes.size()) != 0) std::abort();
  }
};

}  // namespace

// A communicator, with a thread that does its work in order.
struct NcclOpaqueComm {
 public:
  NcclOpaqueComm(uint16_t port, int size, int rank)
      : port_(port), size_(size), rank_(rank), thread_([this] { Run(); }) {}
  ~NcclOpaqueComm() {
    aborted_ = true;
    thread_.join();
    for (const int peer : peers_) {
      if (peer >= 0) close(peer);
    }
  }

  NcclResult state() const { return busy_ > 0 ? NcclResult::kInProgress : NcclResult::kSuccess; }
  void Broadcast(void* memory, size_t count, bool on_device) {
    Work work = Work::Make(memory, count, on_device, rank_ == 0);
    ++busy_;
    MutexLock lock(mutex_);
    work_.push_back(std::move(work));
  }

 private:
  // False: aborted.
  bool Await(int descriptor, short events) const {
    pollfd entry = {.fd = descriptor, .events = events, .revents = 0};
    while (!aborted_) {
      if (poll(&entry, 1, kPollMs) > 0) return true;
    }
    return false;
  }
  // The other end is lost: NCCL would wait forever.
  bool Stall() const {
    while (Await(-1, 0)) continue;
    return false;
  }
  bool Move(int peer, std::byte* bytes, size_t count, bool out) const {
    for (size_t done = 0; done < count;) {
      if (!Await(peer, out ? POLLOUT : POLLIN)) return false;
      const ssize_t moved =
          out ? send(peer, bytes + done, count - done, MSG_NOSIGNAL | MSG_DONTWAIT)
              : recv(peer, bytes + done, count - done, MSG_DONTWAIT);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (moved <= 0) return Stall();
      done += static_cast<size_t>(moved);
    }
    return true;
  }
  bool Meet() {
    std::byte go{1};
    if (rank_ != 0) {
      const int peer = MakeSocket();
      peers_.push_back(peer);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(port_);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
        return Stall();
      std::array<std::byte, sizeof(uint32_t)> rank;
      StoreLe(rank.data(), static_cast<uint32_t>(rank_));
      return Move(peer, rank.data(), rank.size(), true) && Move(peer, &go, 1, false);
    }
    const int listener = Rendezvous::Instance().Take(port_);
    peers_.resize(static_cast<size_t>(size_) - 1, -1);  // by rank, from 1
    bool met = true;
    for (int peers = 1; met && peers < size_; ++peers) {
      met = Await(listener, POLLIN);
      if (!met) break;
      const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      std::array<std::byte, sizeof(uint32_t)> rank = {};
      met = Move(peer, rank.data(), rank.size(), false);
      const auto number = LoadLe<uint32_t>(rank.data());
      if (met && (number == 0 || number > peers_.size())) std::abort();
      if (met) peers_[number - 1] = peer;
      if (!met) close(peer);
    }
    close(listener);
    for (const int peer : peers_) met = met && Move(peer, &go, 1, true);
    return met;
  }
  void Run() {
    if (!Meet()) return;
    --busy_;
    while (!aborted_) {
      Work work;
      {
        MutexLock lock(mutex_);
        if (!work_.empty()) {
          work = std::move(work_.front());
          work_.pop_front();
        }
      }
      if (work.address == 0) {
        poll(nullptr, 0, 1);
        continue;
      }
      for (const int peer : peers_) {
        if (!Move(peer, work.bytes.data(), work.bytes.size(), rank_ == 0)) return;
      }
      if (rank_ != 0) work.Write();
      --busy_;
    }
  }

  const uint16_t port_;
  const int size_;
  const int rank_;
  std::atomic<bool> aborted_{false};
  std::atomic<int> busy_{1};  // the rendezvous and the enqueued work
  std::vector<int> peers_;    // on the root: all others; elsewhere the root
  Mutex mutex_;
  std::deque<Work> work_ GUARDED_BY(mutex_);
  std::thread thread_;
};

namespace {

extern "C" {

#define DWS_EXPORT __attribute__((visibility("default")))

DWS_EXPORT NcclResult ncclGetVersion(int* version);
DWS_EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id);
DWS_EXPORT const char* ncclGetErrorString(NcclResult result);
DWS_EXPORT const char* ncclGetLastError(NcclComm comm);
DWS_EXPORT NcclResult ncclCommInitRankConfig(NcclComm* comm, int size, NcclUniqueId id, int rank,
                                             NcclConfig* config);
DWS_EXPORT NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* async_error);
DWS_EXPORT NcclResult ncclCommAbort(NcclComm comm);
DWS_EXPORT NcclResult ncclBroadcast(const void* source, void* target, size_t count, int type,
                                    int root, NcclComm comm, void* stream);

NcclResult ncclGetVersion(int* version) {
  const char* wanted = std::getenv("FAKE_NCCL_VERSION");
  *version = wanted == nullptr ? 22'809 : std::atoi(wanted);
  return NcclResult::kSuccess;
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  *id = {};
  StoreLe(std::as_writable_bytes(std::span(id->bytes)).data(), Rendezvous::Instance().Listen());
  return NcclResult::kSuccess;
}

const char* ncclGetErrorString(NcclResult result) {
  return result == NcclResult::kInvalidArgument ? "invalid argument" : "an error of the fake";
}

const char* ncclGetLastError(NcclComm) { return ""; }

NcclResult ncclCommInitRankConfig(NcclComm* comm, int size, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  *comm = nullptr;
  const bool fits = config != nullptr && config->magic == NcclConfig().magic &&
                    config->size == sizeof(NcclConfig) && config->blocking == 0;
  if (!fits || rank < 0 || rank >= size) return NcclResult::kInvalidArgument;
  *comm = new NcclOpaqueComm(PortOf(id), size, rank);
  return NcclResult::kInProgress;
}

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* async_error) {
  *async_error = comm->state();
  return NcclResult::kSuccess;
}

NcclResult ncclCommAbort(NcclComm comm) {
  delete comm;
  return NcclResult::kSuccess;
}

NcclResult ncclBroadcast(const void* source, void* target, size_t count, int type, int root,
                         NcclComm comm, void* stream) {
  if (source != target || type != kNcclUint8 || root != 0) return NcclResult::kInvalidArgument;
  // This is NCCL's rule: nothing may be enqueued before the last call has settled.
  if (comm->state() != NcclResult::kSuccess) return NcclResult::kInvalidUsage;
  comm->Broadcast(target, count, stream != nullptr);
  return NcclResult::kInProgress;
}

}  // extern "C"

}  // namespace
}  // namespace dws::nccl
