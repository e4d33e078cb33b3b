// A fake CUDA driver: libcuda.so.1 for machines without a GPU. Its state, and what every
// function begins with.
//
// Device memory is a memfd, mapped at its device address; other processes map the same memfd.
// Streams do nothing until they are waited for, so a missing wait is detected. Kernels run on the
// host. Wrong calls get the same errors as from the driver.
//
// Environment: DWS_FAKE_CUDA_DEVICES (how many the machine has; 2), DWS_FAKE_CUDA_MEMORY (bytes of
// each; 8 GiB), DWS_FAKE_CUDA_FABRIC=1 (fabric handles work), DWS_FAKE_CUDA_GUARD=1 (the host
// cannot touch memory of a device, as it cannot on a real one), DWS_FAKE_CUDA_DESCRIPTORS=0 (no
// VMM by descriptors), DWS_FAKE_CUDA_FAIL ("symbol:n[:error]", with commas between: the nth call
// fails, counted from 1), DWS_FAKE_CUDA_HOLD ("symbol:path": calls wait while somebody has an
// exclusive flock of that file), DWS_FAKE_CUDA_WRONG_CODES=1 (devices quantise otherwise than the
// host); and CUDA_VISIBLE_DEVICES.
//
// A program may give it a clock (model/fake_clock.h): then work runs as soon as it is called, and
// the clock says when a GPU would have done it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "tests/fakes/cuda/fake_functions.h"
#include "tests/fakes/cuda/model/model_clock.h"

namespace dws::cuda {

inline constexpr uint64_t kGranularity = uint64_t{2} << 20;  // of VMM chunks
inline constexpr int kFakeVersion = 13000;

struct FakePool {
  int device = 0;  // its number in the machine
  int handle_types = 0;
  int pid = 0;  // of its owner
  uint64_t id = 0;
  UniqueFd fd;  // stands for the pool in other processes
};

struct FakeDevice {
  int number = 0;  // in the machine; the ordinal is its place in State::devices
  DeviceUuid uuid = {};
  uint64_t capacity = 0;
  uint64_t used = 0;
  int context_references = 0;
  FakePool default_pool;
};

// One physical chunk of VMM.
struct FakeChunk {
  UniqueFd fd;
  uint64_t size = 0;
  int device = 0;
  int handle_types = 0;
  int references = 0;  // handles and mappings
  bool imported = false;
};

// A mapped range of device memory.
struct FakeMemory {
  enum class Kind { kAllocated, kIpc, kPooled, kImportedPooled, kChunk };
  Kind kind = Kind::kAllocated;
  uint64_t base = 0;
  uint64_t size = 0;
  int device = 0;  // number in the machine
  int handle_types = 0;
  uint64_t id = 0;
  UniqueFd fd;
  uint64_t inode = 0;
  int owner_pid = 0;        // of kIpc
  uint64_t owner_base = 0;  // of kIpc: its address there
  const FakePool* pool = nullptr;
  uint64_t chunk = 0;
  bool accessible = true;
  int opens = 1;
};

struct FakeStream {
  FakeDevice* device = nullptr;
  uint64_t id = 0;  // 0: the default stream
  std::deque<std::function<DriverResult()>> waiting;
  uint64_t asked = 0;
  uint64_t done = 0;
  DriverResult error = DriverResult::kSuccess;

  void Push(std::function<DriverResult()> work);
  void RunUpTo(uint64_t number);
};

struct FakeModule {
  FakeDevice* device = nullptr;
};

struct FakeFunction {
  FakeModule* module = nullptr;
  Kernel kernel = Kernel::kStage;
};

// The content of the 64 bytes of a handle that another process gets.
struct WireHandle {
  uint32_t magic = 0;
  int32_t pid = 0;
  int32_t fd = 0;
  int32_t device = 0;
  uint64_t size = 0;
  uint64_t inode = 0;
  uint64_t pool = 0;
  uint64_t base = 0;  // its address in the owner
  int32_t handle_types = 0;
  int32_t unused[3] = {};
};
static_assert(sizeof(WireHandle) == kDriverHandleBytes);

// All state. Guarded by `mutex`, which every exported function holds.
struct State {
  Mutex mutex;
  bool initialised = false;
  std::vector<std::unique_ptr<FakeDevice>> devices;
  std::map<uint64_t, FakeMemory> memories;    // by base
  std::map<uint64_t, uint64_t> host;          // pinned or registered: size by address
  std::map<uint64_t, uint64_t> owned_host;    // those of `host` that this driver allocated
  std::map<uint64_t, uint64_t> reservations;  // size by address
  std::map<uint64_t, FakeChunk> chunks;
  std::map<const void*, std::unique_ptr<FakePool>> pools;
  std::map<const void*, std::shared_ptr<FakeStream>> streams;
  std::map<const void*, std::unique_ptr<FakeModule>> modules;
  std::map<const void*, FakeFunction> functions;
  std::map<std::string, int> calls;
  std::shared_ptr<ModelClock> clock;  // null: work takes no time
  uint64_t next_id = 1;
  int access_depth = 0;  // of Access

  FakeDevice* DeviceOfNumber(int number);
  int OrdinalOf(int number);
  FakeMemory* Find(uint64_t address);
  // Returns whether all of [address, address + size) is mapped and accessible device memory.
  bool Accessible(uint64_t address, uint64_t size);
  bool InHost(uint64_t address, uint64_t size);
  // Also waits for all work on the clock.
  void RunAll();
  // The caller takes memory, for so many seconds on the clock.
  void TakeTime(uint64_t bytes, double seconds);
};

State& TheState();
FakeDevice* CurrentDevice();
void SetCurrentDevice(FakeDevice* device);
std::string Variable(const char* name, const char* otherwise);

// Every exported function begins with this: the lock, the injected failure, initialisation, and a
// current context if it needs one.
class Call {
 public:
  enum class Needs { kNothing, kInit, kContext };
  Call(const char* symbol, Needs needs);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  DriverResult result() const { return result_; }

 private:
  // Waits on the clock after the lock is released, as a caller of the driver waits while others
  // call it.
  struct Wait {
    std::shared_ptr<ModelClock> clock;
    ~Wait();
  };
  Wait wait_;
  MutexLock lock_;
  DriverResult result_ = DriverResult::kSuccess;
};
#define FAKE_CUDA_CALL(needs)                    \
  const Call call(__func__, Call::Needs::needs); \
  if (call.result() != DriverResult::kSuccess) return call.result()

// A memfd of device memory, with its description in its name.
UniqueFd MakeMemory(const char* what, uint64_t size, int device, int handle_types, uint64_t id);
// The numbers in the name of such a descriptor: device, handle types, pid, id. False if it is not
// a `what`.
bool ReadName(int fd, const char* what, int (&numbers)[4]);
uint64_t InodeOf(int fd);
// Maps it anywhere, or at `at`; 0 if there is no address space.
uint64_t MapMemory(int fd, uint64_t size, uint64_t at, bool accessible);
bool Guarded();
// The call in progress returns when the clock is at `time`.
void ReturnAt(double time);
// Opens what another process exported; invalid if that no longer exists.
UniqueFd OpenWire(const WireHandle& handle);

// While one exists, the host may touch device memory even with DWS_FAKE_CUDA_GUARD.
class Access {
 public:
  Access();
  ~Access();
};

}  // namespace dws::cuda
