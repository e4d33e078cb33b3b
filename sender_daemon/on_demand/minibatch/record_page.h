// Where the sender keeps its record of the rank's place in the minibatch: in the first page of the
// memory of the gradients, which the rank maps too, so that it outlives one of the two processes.
#pragma once

#include <optional>

#include "common/base/bytes.h"
#include "proto/train.pb.h"

namespace dws {

// Two halves are written in turn, so a sender that dies while it writes leaves the record before.
// Threads: one at a time.
class RecordPage {
 public:
  // `page` has limits::kRecordPageBytes, which the rank may write: what is there is checked.
  explicit RecordPage(MutableByteSpan page) : page_(page) {}

  // The newest record; none: there is none, or it is damaged. It says which job it is of.
  std::optional<v1::TrainMessage> Load();
  void Save(const v1::TrainMessage& message);

 private:
  MutableByteSpan Half(uint64_t sequence) const;

  const MutableByteSpan page_;
  uint64_t sequence_ = 0;
};

}  // namespace dws
