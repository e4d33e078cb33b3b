// The clock of the fake driver: when work would run on a GPU (gpu_model.h), and what time it is.
//
// A device has a compute engine and a copy engine for each direction. The work of a stream is in
// order. A piece begins once it is called, its stream has done the piece before, and its engines
// are free; of those that could begin, the first to be ready does.
//
// The host's time is this machine's, without the time inside the driver: there, kernels run on the
// host. While one thread is inside, the clock stands still, except that it advances by what the
// process's other threads compute meanwhile. A thread that waits for the device sleeps until the
// clock is there. If the host's time does not count (GpuModel::host_counts), waits and calls move
// the clock themselves, so that its times depend on the calls alone.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "common/base/threads/mutex.h"
#include "tests/fakes/cuda/model/gpu_model.h"

namespace dws::cuda {

// What a piece of work occupies.
struct ModelledWork {
  ModelledOp::Kind kind = ModelledOp::Kind::kKernel;
  Kernel kernel = Kernel::kStage;
  uint64_t bytes = 0;
  double latency = 0;  // before it can begin on idle engines
  double compute = 0;  // seconds of the engines; 0: not used
  double to_device = 0;
  double to_host = 0;
};

// Lifecycle: Enter, any calls, Leave, Sleep, by each of the driver's calls. Threads: safe from any,
// but one at a time is between Enter and Leave.
class ModelClock {
 public:
  explicit ModelClock(const GpuModel& model);

  const GpuModel& model() const { return model_; }
  double Now() const;

  void Enter();
  void Leave();
  // Returns when the clock is at `time`. Call it outside of Enter and Leave.
  void Sleep(double time) const;

  // Work of `stream` on `device`.
  void Run(int device, uint64_t stream, const ModelledWork& work);
  // The host takes memory, and is blocked for `seconds`. As the next two, it returns the time for
  // Sleep.
  double TakeMemory(uint64_t bytes, double seconds);
  double WaitFor(uint64_t stream);
  double WaitForAll();
  // Returns whether the work of `stream` is done.
  bool Query(uint64_t stream);
  void ForgetStream(uint64_t stream);

  // Takes the first `max` of what has begun, in the order in which it began or was called.
  std::vector<ModelledOp> TakeLog(uint64_t max);

 private:
  enum Engine : uint8_t { kCompute, kToDevice, kToHost, kEngineCount };
  using Device = std::array<double, kEngineCount>;  // when each engine is free
  struct Asked {
    ModelledWork work;
    double called = 0;
  };
  struct Stream {
    int device = 0;
    double end = 0;           // of what has begun
    std::deque<Asked> asked;  // has not begun
  };

  double NowLocked() const REQUIRES(mutex_);
  // When the next piece of this stream would begin, if no other came before it.
  double BeginOf(const Stream& stream) const REQUIRES(mutex_);
  // Begins the next piece of all, unless that is after `time`. Returns whether it did.
  bool BeginNext(double time) REQUIRES(mutex_);
  // Begins what begins by now.
  void Settle() REQUIRES(mutex_);
  // Begins all work of the stream, and returns its end.
  double EndOf(uint64_t stream) REQUIRES(mutex_);
  // The host is blocked from now until `time`.
  double Block(ModelledOp op, double time) REQUIRES(mutex_);
  void Log(const ModelledOp& op) REQUIRES(mutex_);

  const GpuModel model_;
  mutable Mutex mutex_;
  bool inside_ GUARDED_BY(mutex_) = false;
  double entered_ GUARDED_BY(mutex_) = 0;  // on the machine's clock
  double others_ GUARDED_BY(mutex_) = 0;   // the other threads' processor time then
  double behind_ GUARDED_BY(mutex_) = 0;   // of the machine's clock
  double now_ GUARDED_BY(mutex_) = 0;      // while inside, or if the host does not count
  std::map<int, Device> devices_ GUARDED_BY(mutex_);
  std::map<uint64_t, Stream> streams_ GUARDED_BY(mutex_);
  std::deque<ModelledOp> log_ GUARDED_BY(mutex_);
};

}  // namespace dws::cuda
