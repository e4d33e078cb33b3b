#include "common/service/security/credentials.h"

#include <chrono>
#include <utility>

#include "common/base/log/log.h"

namespace dws {
namespace {

constexpr int kLooksBetweenTries = 30;  // for files that were refused

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string Contents(const TlsMaterial& material) {
  return material.ca_pem + '\0' + material.cert_pem + '\0' + material.key_pem;
}

void LogLoaded(std::string_view event, const TlsMaterial& material) {
  LogInfo(event, {{"identity", material.identity()},
                  {"expires_in_seconds", material.expires_unix_seconds - UnixNow()},
                  {"generation", material.generation}});
}

}  // namespace

Credentials::Credentials(Options options)
    : options_(std::move(options)), loop_([this] {
        Look();
        return options_.check_interval;
      }) {}

Result<std::shared_ptr<Credentials>> Credentials::Load(Options options) {
  std::shared_ptr<Credentials> credentials(new Credentials(std::move(options)));
  DWS_ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsFiles(credentials->options_.files));
  DWS_RETURN_IF_ERROR(credentials->Take(std::move(material)));
  LogLoaded("tls_loaded", *credentials->current());
  credentials->loop_.Start(credentials->options_.check_interval);
  return credentials;
}

std::shared_ptr<const TlsMaterial> Credentials::current() const {
  MutexLock lock(mutex_);
  return current_;
}

Status Credentials::Take(TlsMaterial material) {
  const Status checked = CheckTlsMaterial(options_.files, options_.required, UnixNow(), material);
  MutexLock lock(mutex_);
  tried_ = Contents(material);
  DWS_RETURN_IF_ERROR(checked);
  material.generation = current_ == nullptr ? 1 : current_->generation + 1;
  current_ = std::make_shared<const TlsMaterial>(std::move(material));
  return OkStatus();
}

Status Credentials::Reload() {
  Result<TlsMaterial> material = ReadTlsFiles(options_.files);
  const Status status = material.ok() ? Take(*std::move(material)) : material.status();
  const std::shared_ptr<const TlsMaterial> in_use = current();
  if (status.ok()) {
    LogLoaded("tls_reloaded", *in_use);
  } else {
    LogError("tls_reload_refused", {{"reason", Message(status)},
                                    {"kept_identity", in_use->identity()},
                                    {"kept_generation", in_use->generation}});
  }
  return status;
}

// While the files are replaced one after the other, they do not match. So a change is loaded only
// when two consecutive looks saw the same contents. Refused contents are tried again when they
// change, and also every kLooksBetweenTries looks, because a certificate may become valid with
// time.
void Credentials::Look() {
  const Result<TlsMaterial> material = ReadTlsFiles(options_.files);
  if (!material.ok()) return;  // being replaced, or gone: the current material stays in use
  const std::string contents = Contents(*material);
  const bool settled = std::exchange(seen_, contents) == contents;
  bool due = false;
  {
    MutexLock lock(mutex_);
    const bool in_use = Contents(*current_) == contents;
    due = !in_use && (tried_ != contents || ++looks_ >= kLooksBetweenTries);
  }
  if (!settled || !due) return;
  looks_ = 0;
  static_cast<void>(Reload());
}

}  // namespace dws
