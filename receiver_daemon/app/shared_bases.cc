// All bases have one key and one set of store options: they are copies of one directory. HTTP
// servers that ask for a certificate are shown the receiver's own.
#include "receiver_daemon/app/shared_bases.h"

#include <utility>

#include "common/transport/http_files/http_file_system.h"
#include "common/transport/s3/store.h"

namespace dws {

Result<std::vector<SharedBase>> OpenSharedBases(const ReceiverOptions& options, FileSystem& files,
                                                Cancellation& reads, Cancellation& writes) {
  const SharedSideOptions& dir = options.shared_dir;
  const bool alone = options.senders.empty() && dir.bases().size() == 1;
  std::vector<SharedBase> bases;
  for (const std::string& root : dir.bases()) {
    SharedBase base{.root = root, .name = "shared-dir", .files = &files};
    if (!bases.empty()) base.name += fmt::format("-{}", bases.size() + 1);
    if (IsStore(root)) {
      DWS_ASSIGN_OR_RETURN(auto store, OpenStore(root, dir.store, reads, writes,
                                                 alone ? s3::Effort() : s3::kBriefEffort));
      base.store = store.get();
      base.owned = std::move(store);
    } else if (IsHttpBase(root)) {
      DWS_ASSIGN_OR_RETURN(base.owned, HttpFileSystem::Create({.url = root,
                                                               .ca_file = dir.store.ca_file,
                                                               .cert_file = options.tls.cert,
                                                               .key_file = options.tls.key,
                                                               .reads = &reads}));
    }
    if (base.owned != nullptr) base.files = base.owned.get();
    bases.push_back(std::move(base));
  }
  return bases;
}

}  // namespace dws
