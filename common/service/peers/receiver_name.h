// Which receiver this is, as it identifies itself to senders and in its commit group.
#pragma once

#include <string>

#include "common/service/protocol_version.h"

namespace dws {

struct ReceiverName {
  std::string job_id;
  std::string receiver_id;
};

// Fills the fields that the first messages of all its streams share.
template <typename Hello>
void Introduce(const ReceiverName& name, Hello& hello) {
  hello.set_job_id(name.job_id);
  hello.set_receiver_id(name.receiver_id);
  hello.set_protocol_major(kProtocolMajor);
  hello.set_protocol_minor(kProtocolMinor);
}

}  // namespace dws
