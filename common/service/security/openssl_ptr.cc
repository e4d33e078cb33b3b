// OpenSSL keeps a queue of errors for each thread. An error that a caller leaves in the queue is
// reported to the next caller, so the queue is cleared here.
#include "common/service/security/openssl_ptr.h"

#include <openssl/err.h>

namespace dws::openssl {

std::string Reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(code);
  return reason == nullptr ? "OpenSSL gives no reason" : reason;
}

}  // namespace dws::openssl
