// Decides, for the side that opens a lasting stream, when to connect, when to give up a silent
// stream, and when to try again. A pure class: no I/O, no clock, no threads;
// common/service/peers/stream_link.h carries out its steps.
#pragma once

#include "common/base/clock.h"
#include "common/model/limits.h"

namespace dws {

// Lifecycle: of all the streams to one peer, one at a time. Threads: one at a time.
class LinkState {
 public:
  enum class Step { kWait, kConnect, kDrop };

  explicit LinkState(TimePoint now) : next_attempt_(now) {}

  // Call it every limits::kTick. kConnect: open a stream, then call OnStarted. kDrop: the stream
  // has been silent for limits::kKeepaliveTimeout, cancel it; returned once in that time.
  Step Tick(TimePoint now);
  // The stream exists. False: it has ended already (OnDone came first), and another may be opened.
  bool OnStarted();
  // True: it is the first that was heard on this stream.
  bool OnHeard(TimePoint now);
  // The peer has accepted us: after this stream's end we may be back soon.
  void OnAccepted() { delay_ = limits::kReconnectDelayMin; }
  // `fenced`: by a twin of ours, which the next stream would fence in turn: slowly then.
  void OnDone(TimePoint now, bool fenced);
  // Opens no further stream.
  void Stop() { stopping_ = true; }

  bool heard() const { return heard_; }  // on this stream, or the last
  bool stopping() const { return stopping_; }
  // No stream exists or is being opened.
  bool idle() const { return phase_ == Phase::kIdle; }

 private:
  enum class Phase { kIdle, kStarting, kEndedEarly, kOpen };

  Phase phase_ = Phase::kIdle;
  bool stopping_ = false;
  bool heard_ = false;
  TimePoint last_heard_;
  TimePoint next_attempt_;
  Duration delay_ = limits::kReconnectDelayMin;
};

}  // namespace dws
