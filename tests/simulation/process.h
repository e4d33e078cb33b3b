// The base of all simulated nodes: a process that may die at any event and restart without its
// memory.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "tests/simulation/events.h"

namespace dws::sim {

class Course;

class Process {
 public:
  // Processes of one `site` share a host: nothing is lost between them.
  Process(Course& course, uint32_t site, std::string name)
      : course_(course), site_(site), name_(std::move(name)) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool up() const { return up_; }
  uint32_t site() const { return site_; }
  const std::string& name() const { return name_; }
  Course& course() const { return course_; }

  void Start();
  // Pending actions do not happen; its links end.
  void Crash();
  // Runs `action` unless the process crashes before.
  void After(Time delay, std::function<void()> action);
  // Returns `action`, which does nothing if the process has crashed before the call.
  std::function<void()> Alive(std::function<void()> action) {
    return [this, life = life_, action = std::move(action)] {
      if (up_ && life == life_) action();
    };
  }

 protected:
  virtual void OnStart() = 0;
  virtual void OnCrash() = 0;  // loses the memory

 private:
  Course& course_;
  const uint32_t site_;
  const std::string name_;
  bool up_ = false;
  uint64_t life_ = 0;
};

}  // namespace dws::sim
