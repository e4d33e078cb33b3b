// A stopped process keeps its connections: the others see silence only.
#include "tests/simulation/train/train_node.h"

#include "tests/simulation/train/train_world.h"

namespace dws::sim {

TrainNode::TrainNode(TrainWorld& world, uint32_t site, std::string name, TrainerRank rank)
    : Process(world, site, std::move(name)), world_(world), rank_(rank) {}

void TrainNode::Thaw() {
  if (!std::exchange(frozen_, false)) return;
  world_.Trace("{} goes on", name());
  while (!frozen_ && !delayed_.empty()) {
    const std::function<void()> action = std::move(delayed_.front());
    delayed_.pop_front();
    action();
  }
}

void TrainNode::Run(std::function<void()> action) {
  if (!up()) return;
  if (!frozen_) return action();
  delayed_.push_back(Alive(std::move(action)));
}

void TrainNode::Soon(Time delay, std::function<void()> action) {
  After(delay, [this, action = std::move(action)] { Run(action); });
}

void TrainNode::OnCrash() {
  frozen_ = false;
  delayed_.clear();
}

}  // namespace dws::sim
