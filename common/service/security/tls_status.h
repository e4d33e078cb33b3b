// What a daemon reports about its own certificate.
#pragma once

#include "common/service/security/credentials.h"
#include "proto/admin.pb.h"

namespace dws {

// `credentials` null: TLS is off.
inline void FillTlsStatus(const Credentials* credentials, v1::TlsStatus& status) {
  if (credentials == nullptr) return;
  const auto material = credentials->current();
  status.set_enabled(true);
  status.set_identity(material->identity());
  status.set_expires_unix_seconds(material->expires_unix_seconds);
}

}  // namespace dws
