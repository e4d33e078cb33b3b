#include "tools/bench/codec/probe.h"

#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"

namespace dws::bench {
namespace {

constexpr size_t kThreadsMax = 64;

class Probe {
 public:
  explicit Probe(const Workload& workload) : workload_(workload) {}

  Status Start() {
    DWS_ASSIGN_OR_RETURN(sender_, SenderSide::Create(workload_.placement()));
    DWS_ASSIGN_OR_RETURN(receiver_, ReceiverSide::Create(workload_.placement()));
    workload_.FillBefore(sender_->weights());
    workload_.FillBefore(receiver_->weights());
    ThreadPool& pool = Pool(2);
    sender_->Capture(pool);
    sender_->Seal();
    Turn();
    sender_->Capture(pool);
    DWS_RETURN_IF_ERROR(receiver_->Receive(sender_->Seal()->object, pool));
    DWS_ASSIGN_OR_RETURN(staged_, receiver_->Stage(pool));
    return OkStatus();
  }

  double CaptureSeconds(size_t threads) {
    Turn();
    return SecondsOf([&] { sender_->Capture(Pool(threads)); });
  }
  double CommitSeconds(size_t threads) {
    return SecondsOf([&] { receiver_->Commit(staged_, Pool(threads)); });
  }

 private:
  // Brings the weights to the other version.
  void Turn() {
    is_after_ = !is_after_;
    workload_.Write(sender_->weights(),
                    is_after_ ? workload_.changes().after : workload_.changes().before);
  }
  ThreadPool& Pool(size_t threads) {
    std::unique_ptr<ThreadPool>& pool = pools_[threads];
    if (pool == nullptr) pool = std::make_unique<ThreadPool>(threads - 1);
    return *pool;
  }
  static double SecondsOf(const auto& work) {
    const RealClock clock;
    const TimePoint start = clock.Now();
    work();
    return ToSeconds(clock.Now() - start);
  }

  const Workload& workload_;
  std::map<size_t, std::unique_ptr<ThreadPool>> pools_;
  std::unique_ptr<SenderSide> sender_;
  std::unique_ptr<ReceiverSide> receiver_;
  StagedDelta staged_;
  bool is_after_ = false;
};

void Say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace

Status ServeProbe(const Workload& workload) {
  Probe probe(workload);
  DWS_RETURN_IF_ERROR(probe.Start());
  Say("ready");
  std::string what;
  size_t threads = 0;
  while (std::cin >> what >> threads) {
    if (threads < 1 || threads > kThreadsMax || (what != "capture" && what != "commit")) {
      return InvalidArgumentError("expected 'capture N' or 'commit N', found '{} {}'", what,
                                  threads);
    }
    Say(fmt::format("{:.9f}", what == "capture" ? probe.CaptureSeconds(threads)
                                                : probe.CommitSeconds(threads)));
  }
  return OkStatus();
}

}  // namespace dws::bench
