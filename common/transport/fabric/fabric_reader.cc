// Progress is made inside Start and Wait, which a transfer calls all the time.
#include "common/transport/fabric/fabric_reader.h"

#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/transport/fabric/fabric_endpoint.h"

namespace dws {
namespace {

constexpr int kWaitMs = 20;

}  // namespace

// Memory to read to. `region` is null if the provider does without.
struct FabricReader::Local {
  MutableByteSpan bytes;
  FabricHandle<fid_mr> region;
};

// A read whose bytes have not arrived. The provider owns the context until then.
struct FabricReader::UnderWay {
  fi_context2 context = {};
  uint64_t tag = 0;
};

FabricReader::FabricReader(const RemoteRegion& remote, const Options& options)
    : remote_(remote), timeout_(options.timeout), pieces_(options.pieces_max) {
  for (size_t i = 0; i < pieces_.size(); ++i) free_.push_back(i);
}

FabricReader::~FabricReader() { local_.clear(); }

size_t FabricReader::pieces_max() const { return pieces_.size(); }

Result<std::unique_ptr<FabricReader>> FabricReader::Connect(FabricApiPtr api,
                                                            const RemoteRegion& remote,
                                                            const Options& options) {
  DWS_CHECK(!options.local.empty() && options.pieces_max > 0);
  if (remote.address.empty() || remote.address.size() > kFabricAddressBytesMax ||
      remote.base > UINT64_MAX - remote.size) {
    return InvalidArgumentError(
        "a region of {} bytes at {:x}, with an address of {} bytes, is no region of a fabric",
        remote.size, remote.base, remote.address.size());
  }
  std::unique_ptr<FabricReader> reader(new FabricReader(remote, options));
  DWS_ASSIGN_OR_RETURN(reader->endpoint_,
                       FabricEndpoint::Open(std::move(api), {.provider = remote.provider,
                                                             .peer = &remote,
                                                             .memory = options.local[0]}));
  FabricEndpoint& end = *reader->endpoint_;
  reader->name_ = end.name();
  for (const MutableByteSpan bytes : options.local) {
    Local local{.bytes = bytes, .region = nullptr};
    if (end.has_mode(FI_MR_LOCAL)) {
      DWS_ASSIGN_OR_RETURN(local.region, end.Register(bytes, FI_READ, reader->local_.size()));
    }
    reader->local_.push_back(std::move(local));
  }
  DWS_ASSIGN_OR_RETURN(reader->peer_, end.Insert(remote));
  return reader;
}

Status FabricReader::Start(const Piece& piece) {
  DWS_CHECK(piece.offset <= remote_.size && piece.to.size() <= remote_.size - piece.offset);
  if (!failed_.ok()) return failed_;
  DWS_CHECK(!free_.empty());
  const auto home = std::find_if(local_.begin(), local_.end(), [&piece](const Local& local) {
    return local.bytes.data() <= piece.to.data() &&
           piece.to.data() + piece.to.size() <= local.bytes.data() + local.bytes.size();
  });
  DWS_CHECK(home != local_.end());
  void* const descriptor = home->region == nullptr ? nullptr : ::fi_mr_desc(home->region.get());
  UnderWay& under_way = pieces_[free_.back()];
  under_way.tag = piece.tag;
  const auto give_up = std::chrono::steady_clock::now() + timeout_;
  while (true) {
    const ssize_t error =
        ::fi_read(endpoint_->endpoint(), piece.to.data(), piece.to.size(), descriptor, peer_,
                  remote_.base + piece.offset, remote_.key, &under_way.context);
    if (error == 0) break;
    if (error != -FI_EAGAIN) return Fail(endpoint_->Error(error, "fi_read"));
    if (std::chrono::steady_clock::now() > give_up) {
      return Fail(DeadlineExceededError("fabric {}: no connection within {} s", name_,
                                        std::chrono::duration<double>(timeout_).count()));
    }
    DWS_RETURN_IF_ERROR(Take(1));  // connections are made by progress
  }
  free_.pop_back();
  return OkStatus();
}

Result<uint64_t> FabricReader::Wait() {
  const auto give_up = std::chrono::steady_clock::now() + timeout_;
  while (arrived_.empty()) {
    if (!failed_.ok()) return failed_;
    DWS_CHECK(free_.size() < pieces_.size());
    if (std::chrono::steady_clock::now() > give_up) {
      return Fail(DeadlineExceededError("fabric {}: nothing arrived within {} s", name_,
                                        std::chrono::duration<double>(timeout_).count()));
    }
    DWS_RETURN_IF_ERROR(Take(kWaitMs));
  }
  const uint64_t tag = arrived_.front();
  arrived_.pop_front();
  return tag;
}

Status FabricReader::Take(int timeout_ms) {
  fi_cq_entry completion = {};
  const ssize_t got = endpoint_->Await(completion, timeout_ms);
  if (got == -FI_EAGAIN || got == -FI_EINTR || got == 0) return OkStatus();
  if (got == -FI_EAVAIL) return Fail(endpoint_->CompletionError("a read failed"));
  if (got < 0) return Fail(endpoint_->Error(got, "fi_cq_read"));
  const auto found = std::find_if(pieces_.begin(), pieces_.end(), [&](const UnderWay& piece) {
    return &piece.context == completion.op_context;
  });
  if (found == pieces_.end()) {
    return Fail(UnavailableError("fabric {}: a completion of no read of ours", name_));
  }
  arrived_.push_back(found->tag);
  free_.push_back(static_cast<size_t>(found - pieces_.begin()));
  return OkStatus();
}

Status FabricReader::Fail(const Status& error) {
  failed_ = error;
  local_.clear();
  endpoint_.reset();
  return error;
}

}  // namespace dws
