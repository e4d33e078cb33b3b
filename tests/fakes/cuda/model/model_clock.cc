#include "tests/fakes/cuda/model/model_clock.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <thread>

namespace dws::cuda {
namespace {

// A sleep may last so much longer than was asked for: the rest is waited for awake.
constexpr double kLateSeconds = 100e-6;
// How long to sleep while the clock stands still.
constexpr double kStillSeconds = 50e-6;

double Seconds(clockid_t clock) {
  timespec time = {};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double MachineSeconds() { return Seconds(CLOCK_MONOTONIC); }

double OthersSeconds() {
  return Seconds(CLOCK_PROCESS_CPUTIME_ID) - Seconds(CLOCK_THREAD_CPUTIME_ID);
}

// How many threads besides the caller's can compute at a time.
double OtherCores() { return std::max(1U, std::thread::hardware_concurrency() - 1); }

void NanoSleep(double seconds) {
  const timespec time = {
      .tv_sec = static_cast<time_t>(seconds),
      .tv_nsec = static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  ::nanosleep(&time, nullptr);
}

}  // namespace

ModelClock::ModelClock(const GpuModel& model) : model_(model), behind_(MachineSeconds()) {}

double ModelClock::NowLocked() const {
  return inside_ || !model_.host_counts ? now_ : MachineSeconds() - behind_;
}

double ModelClock::Now() const {
  MutexLock lock(mutex_);
  return NowLocked();
}

void ModelClock::Enter() {
  MutexLock lock(mutex_);
  now_ = NowLocked();
  entered_ = MachineSeconds();
  others_ = OthersSeconds();
  inside_ = true;
}

void ModelClock::Leave() {
  MutexLock lock(mutex_);
  inside_ = false;
  if (!model_.host_counts) return;
  const double left = MachineSeconds();
  now_ += std::clamp((OthersSeconds() - others_) / OtherCores(), 0.0, left - entered_);
  behind_ = left - now_;
}

void ModelClock::Sleep(double time) const {
  if (!model_.host_counts) return;
  for (;;) {
    double left = 0;
    bool still = false;
    {
      MutexLock lock(mutex_);
      left = time - NowLocked();
      still = inside_;
    }
    if (left <= 0) return;
    if (still || left > kLateSeconds) {
      NanoSleep(still ? kStillSeconds : left - kLateSeconds);
    } else {
      ::sched_yield();
    }
  }
}

void ModelClock::Run(int device, uint64_t stream, const ModelledWork& work) {
  MutexLock lock(mutex_);
  now_ += model_.call_seconds;
  streams_[stream].device = device;
  streams_[stream].asked.push_back({.work = work, .called = now_});
  Settle();
}

double ModelClock::BeginOf(const Stream& stream) const {
  const Asked& next = stream.asked.front();
  double begin = std::max(next.called + next.work.latency, stream.end);
  const auto found = devices_.find(stream.device);
  if (found == devices_.end()) return begin;
  const Device& free = found->second;
  if (next.work.compute > 0) begin = std::max(begin, free[kCompute]);
  if (next.work.to_device > 0) begin = std::max(begin, free[kToDevice]);
  if (next.work.to_host > 0) begin = std::max(begin, free[kToHost]);
  return begin;
}

bool ModelClock::BeginNext(double time) {
  Stream* first = nullptr;
  double begin = 0;
  double ready = 0;
  for (auto& [id, stream] : streams_) {
    if (stream.asked.empty()) continue;
    const double other = BeginOf(stream);
    const double other_ready =
        std::max(stream.asked.front().called + stream.asked.front().work.latency, stream.end);
    if (first != nullptr && (other > begin || (other == begin && other_ready >= ready))) continue;
    first = &stream;
    begin = other;
    ready = other_ready;
  }
  if (first == nullptr || begin > time) return false;
  const Asked next = first->asked.front();
  first->asked.pop_front();
  const ModelledWork& work = next.work;
  first->end = begin + std::max({work.compute, work.to_device, work.to_host});
  Device& free = devices_[first->device];
  if (work.compute > 0) free[kCompute] = first->end;
  if (work.to_device > 0) free[kToDevice] = first->end;
  if (work.to_host > 0) free[kToHost] = first->end;
  Log({.kind = work.kind,
       .kernel = work.kernel,
       .bytes = work.bytes,
       .called = next.called,
       .begin = begin,
       .end = first->end});
  return true;
}

void ModelClock::Settle() {
  while (BeginNext(now_)) {
  }
}

double ModelClock::EndOf(uint64_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return 0;
  while (!found->second.asked.empty()) BeginNext(std::numeric_limits<double>::infinity());
  return found->second.end;
}

double ModelClock::Block(ModelledOp op, double time) {
  op.called = now_;
  op.begin = now_;
  op.end = std::max(now_, time);
  if (!model_.host_counts) now_ = op.end;
  Log(op);
  return op.end;
}

double ModelClock::TakeMemory(uint64_t bytes, double seconds) {
  MutexLock lock(mutex_);
  return Block({.kind = ModelledOp::Kind::kTakeMemory, .bytes = bytes}, now_ + seconds);
}

double ModelClock::WaitFor(uint64_t stream) {
  MutexLock lock(mutex_);
  now_ += model_.call_seconds;
  const double end = EndOf(stream);
  return Block({.kind = ModelledOp::Kind::kWait}, end > now_ ? end + model_.wake_seconds : now_);
}

double ModelClock::WaitForAll() {
  MutexLock lock(mutex_);
  double end = 0;
  for (const auto& [id, stream] : streams_) end = std::max(end, EndOf(id));
  return Block({.kind = ModelledOp::Kind::kWait}, end > now_ ? end + model_.wake_seconds : now_);
}

bool ModelClock::Query(uint64_t stream) {
  MutexLock lock(mutex_);
  now_ += model_.call_seconds;
  Settle();
  const auto found = streams_.find(stream);
  return found == streams_.end() || (found->second.asked.empty() && found->second.end <= now_);
}

void ModelClock::ForgetStream(uint64_t stream) {
  MutexLock lock(mutex_);
  (void)EndOf(stream);
  streams_.erase(stream);
}

void ModelClock::Log(const ModelledOp& op) {
  if (log_.size() < kModelledOpsMax) log_.push_back(op);
}

std::vector<ModelledOp> ModelClock::TakeLog(uint64_t max) {
  MutexLock lock(mutex_);
  while (BeginNext(NowLocked())) {
  }
  const auto end = log_.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(max, log_.size()));
  std::vector<ModelledOp> taken(log_.begin(), end);
  log_.erase(log_.begin(), end);
  return taken;
}

}  // namespace dws::cuda
