// The base of the processes of a world: trainers, senders, receivers and engines.
#pragma once

#include <string>
#include <utility>

#include "tests/simulation/process.h"
#include "tests/simulation/world.h"

namespace dws::sim {

// A process that knows its world.
class Node : public Process {
 public:
  Node(World& world, uint32_t site, std::string name)
      : Process(world, site, std::move(name)), world_(world) {}
  World& world() const { return world_; }

 private:
  World& world_;
};

}  // namespace dws::sim
