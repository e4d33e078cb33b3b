// A training job in this process, whose trainer and engine have their weights on one modelled GPU:
// the sender's capture and sealing, the receiver's staging and commit, over the fake driver with
// its clock. No network, no ledger, no engine that computes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/cuda_device.h"
#include "tests/fakes/cuda/model/fake_clock.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

// A part of a version's way, in seconds of the clock.
struct Stage {
  std::string name;
  double begin = 0;
  double end = 0;
};

// One version, from the trainer's call to the engine's commit. Stages follow one another.
struct Timeline {
  std::vector<Stage> stages;
  std::vector<cuda::ModelledOp> log;
};

// The stages of GpuJob. The trainer waits for the first of each version.
inline constexpr const char* kStall = "publish: until the weights are read";
inline constexpr const char* kCapture = "publish: until the weights are in the snapshot";
inline constexpr const char* kEncode = "encode; the rest of the capture";
inline constexpr const char* kSeal = "seal";
inline constexpr const char* kTake = "receive and parse";
inline constexpr const char* kStage = "stage";
inline constexpr const char* kCommit = "commit: the engine waits";
inline constexpr const char* kFetch = "read the snapshot into staging memory and verify";
inline constexpr const char* kDirect = "read the snapshot and write to the engine";
inline constexpr const char* kApply = "write: the engine waits";
inline constexpr const char* kProve = "prove: read back";

// Lifecycle: First, then any number of Delta, then any number of Full. `workload` outlives it.
// Threads: one.
class GpuJob {
 public:
  // FAILED_PRECONDITION: this process has not loaded the fake driver. Others: no memory.
  static Result<std::unique_ptr<GpuJob>> Create(const Workload& workload, size_t threads,
                                                const cuda::GpuModel& model);

  Result<Timeline> First();
  // The workload's words change, back and forth. `listed`: the trainer lists the changes.
  Result<Timeline> Delta(bool listed = false);
  // Every element changes.
  Result<Timeline> Full();

  // DATA_LOSS: the engine does not have the trainer's bytes.
  Status CheckEngine() const;

 private:
  GpuJob(const Workload& workload, size_t threads, const cuda::GpuModel& model)
      : workload_(workload), pool_(threads - 1), clock_(model) {}
  Status Upload() const;
  // Writes how bytes_ differ from `before`, BF16, to lists_.
  std::vector<ListedShard> ListChanges(ByteSpan before);
  void Begin();
  // Ends a stage here.
  void Mark(const char* name);
  Timeline End();
  // Reads the newest version from the sender's snapshot, as a receiver on the same host does.
  // `direct`: as FullWant has it.
  Status Fetch(DirectTarget* direct);

  const Workload& workload_;
  ThreadPool pool_;
  const cuda::FakeClock clock_;
  cuda::CudaDevicePtr device_;
  uint64_t trainer_ = 0;  // addresses of the weights
  uint64_t engine_ = 0;
  HostRegion lists_;
  std::vector<std::byte> bytes_;  // that the trainer has
  bool is_after_ = false;
  std::unique_ptr<SenderSide> sender_;
  std::unique_ptr<ReceiverSide> receiver_;
  double stage_began_ = 0;
  Timeline timeline_;
};

}  // namespace dws::bench
