// A process and its course need each other, so both are here.
#include "tests/simulation/course.h"

namespace dws::sim {

Course::Course(const Options& given)
    : options(given), random(given.seed * 0x9E3779B97F4A7C15 + 1), network(*this) {
  planted = options.mutation;
}

void Course::AddTrace(std::string line) {
  trace_.push_back(fmt::format("{:9.3f} {}", static_cast<double>(events.now()) / kRoundTrip, line));
}

void Process::Start() {
  if (up_) return;
  up_ = true;
  ++life_;
  course_.Trace("{} starts", name_);
  OnStart();
}

void Process::Crash() {
  if (!up_) return;
  course_.Trace("{} dies", name_);
  up_ = false;
  ++life_;
  course_.network.OnCrash(*this);
  OnCrash();
}

void Process::After(Time delay, std::function<void()> action) {
  course_.events.After(delay, Alive(std::move(action)));
}

}  // namespace dws::sim
