#include "common/service/grpc/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/service/grpc/grpc_runtime.h"

namespace dws {
namespace {

void AddUri(std::string_view uri, Peer& peer) {
  if (peer.identities.size() >= limits::kPeerIdentitiesMax) return;
  if (Result<Identity> identity = ParseIdentity(uri); identity.ok()) {
    peer.identities.push_back(*std::move(identity));
  }
}

// The user data of the C library's callbacks. The library's credentials own it; they live as long
// as any listener that uses them.
struct ServerState {
  std::shared_ptr<Credentials> credentials;
  std::string job_id;
  Mutex mutex;
  uint64_t generation GUARDED_BY(mutex) = 0;  // the one that gRPC uses
};

// gRPC calls it before each handshake.
grpc_ssl_certificate_config_reload_status FetchConfig(void* user_data,
                                                      grpc_ssl_server_certificate_config** config) {
  auto& state = *static_cast<ServerState*>(user_data);
  const std::shared_ptr<const TlsMaterial> material = state.credentials->current();
  MutexLock lock(state.mutex);
  if (state.generation == material->generation) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {.private_key = material->key_pem.c_str(),
                                           .cert_chain = material->cert_pem.c_str()};
  *config = grpc_ssl_server_certificate_config_create(material->ca_pem.c_str(), &pair, 1);
  if (*config == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
  state.generation = material->generation;
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

std::string_view PathOf(const grpc_metadata* metadata, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const auto text = [](const grpc_slice& slice) {
      return std::string_view(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
                              GRPC_SLICE_LENGTH(slice));
    };
    if (text(metadata[i].key) == ":path") return text(metadata[i].value);
  }
  return "";
}

Peer PeerOfCall(const grpc_auth_context* context) {
  Peer peer{.verified = grpc_auth_context_peer_is_authenticated(context) == 1, .identities = {}};
  grpc_auth_property_iterator names =
      grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
  while (const grpc_auth_property* const name = grpc_auth_property_iterator_next(&names)) {
    AddUri({name->value, name->value_length}, peer);
  }
  return peer;
}

// The only place that enforces the access table, before a call reaches a service. `state` is null
// on listeners where callers have no certificates.
void ProcessCall(void* state, grpc_auth_context* context, const grpc_metadata* metadata,
                 size_t count, grpc_process_auth_metadata_done_cb done, void* user_data) {
  const std::string_view path = PathOf(metadata, count);
  Status status;
  if (state == nullptr) {
    status = CheckPlainMethod(path);
  } else {
    const Peer peer = PeerOfCall(context);
    status = CheckMethod(path, static_cast<ServerState*>(state)->job_id, peer.identities);
    if (status.ok() && !peer.verified) {
      status = MakeStatus(absl::StatusCode::kUnauthenticated, "a client certificate is needed");
    }
  }
  if (!status.ok()) LogWarning("call_refused", {{"method", path}, {"reason", Message(status)}});
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
       status.ok() ? nullptr : std::string(Message(status)).c_str());
}

grpc_server_credentials* ReloadingTls(ServerState* state) {
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &FetchConfig, state));
}

// gRPC's C++ API has no server credentials whose certificates can change, and no plain credentials
// that check calls. Its C API has both.
class CheckingServerCredentials final : public grpc::ServerCredentials {
 public:
  // Takes ownership of `core`. `state` is what ProcessCall gets.
  CheckingServerCredentials(grpc_server_credentials* core, std::unique_ptr<ServerState> state)
      : core_(core) {
    DWS_CHECK(core_ != nullptr);
    grpc_server_credentials_set_auth_metadata_processor(
        core_, {.process = &ProcessCall,
                .destroy = [](void* owned) { delete static_cast<ServerState*>(owned); },
                .state = state.release()});
  }
  ~CheckingServerCredentials() override { grpc_server_credentials_release(core_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    DWS_CHECK(false);  // it would replace ProcessCall
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), core_);
  }

  grpc_server_credentials* const core_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<Credentials> credentials, std::string job_id) {
  KeepGrpcRunning();
  auto state = std::make_unique<ServerState>();
  state->credentials = std::move(credentials);
  state->job_id = std::move(job_id);
  grpc_server_credentials* const core = ReloadingTls(state.get());
  return std::make_shared<CheckingServerCredentials>(core, std::move(state));
}

std::shared_ptr<grpc::ServerCredentials> MakePlainServerCredentials() {
  KeepGrpcRunning();
  return std::make_shared<CheckingServerCredentials>(grpc_insecure_server_credentials_create(),
                                                     nullptr);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsMaterial& material) {
  KeepGrpcRunning();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = material.ca_pem;
  options.pem_cert_chain = material.cert_pem;
  options.pem_private_key = material.key_pem;
  return grpc::SslCredentials(options);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> LoadChannelCredentials(const TlsFiles& files) {
  KeepGrpcRunning();
  if (!files.given()) return grpc::InsecureChannelCredentials();
  DWS_ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsFiles(files));
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  DWS_RETURN_IF_ERROR(CheckTlsMaterial(files, {}, now, material));
  return MakeChannelCredentials(material);
}

Peer PeerOf(const grpc::AuthContext* context) {
  Peer peer;
  if (context == nullptr) return peer;
  // Looks at the transport and not at IsPeerAuthenticated: a certificate without any name is
  // verified too, but has no identity.
  for (const grpc::string_ref& type :
       context->FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME)) {
    peer.verified = peer.verified || type == GRPC_SSL_TRANSPORT_SECURITY_TYPE;
  }
  for (const grpc::string_ref& uri : context->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    AddUri({uri.data(), uri.size()}, peer);
  }
  return peer;
}

}  // namespace dws
