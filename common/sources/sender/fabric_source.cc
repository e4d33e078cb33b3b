// The sender lends its memory over its authenticated connection.
#include "common/sources/sender/fabric_source.h"

namespace dws {

std::string FabricSource::detail(SenderIndex sender) const {
  MutexLock lock(mutex_);
  const auto found = providers_.find(sender);
  return found == providers_.end() ? std::string() : found->second;
}

Status FabricSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  Fetcher fetcher = links_.sender(piece).fetcher(piece.target, piece.rank);
  std::string provider;
  const Status read = memory_.Read([&] { return fetcher.OpenFabric(piece.target.stream); },
                                   piece.target.version, assembly, provider);
  MutexLock lock(mutex_);
  providers_[piece.of().sender] = std::move(provider);
  return read;
}

}  // namespace dws
