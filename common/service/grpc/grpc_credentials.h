// gRPC's form of TLS credentials, for servers and channels, and the identities of a call's peer.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/service/security/access.h"
#include "common/service/security/credentials.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace dws {

// TLS 1.2 or 1.3; clients must show a certificate. Each handshake uses the credentials' current
// files. Every call is checked against access.h's table for `job_id`.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<Credentials> credentials, std::string job_id);

// No TLS, for an address that --insecure allows. Every call is checked by CheckPlainMethod.
std::shared_ptr<grpc::ServerCredentials> MakePlainServerCredentials();

// For a channel that uses `material` for its whole life.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsMaterial& material);

// For a short-lived client: loads and checks the files. If no file is given, the channel has no
// TLS. The server's certificate must have the name that the client dials, or the name passed to
// grpc::ChannelArguments::SetSslTargetNameOverride.
Result<std::shared_ptr<grpc::ChannelCredentials>> LoadChannelCredentials(const TlsFiles& files);

// Returns who is at the other end of a call, from its context's auth_context(). Null: not verified.
Peer PeerOf(const grpc::AuthContext* context);

}  // namespace dws
