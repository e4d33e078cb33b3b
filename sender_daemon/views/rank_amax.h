// What the ranks of a trainer tell each other of the matrices that lie over several of them: the
// amax of each part, for one view at one version of one stream.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "common/quantise/view.h"
#include "sender_daemon/views/matrix_amax.h"

namespace dws {

// What a message is about. One about anything else is refused.
struct AmaxSubject {
  StreamId stream;
  WeightVersion version;
};

// The message for the other ranks (proto/view_amax.proto). `trainer`: the layout of which `view` is
// made; `amax` was measured at this version.
std::vector<std::byte> AmaxMessage(const AmaxSubject& subject, const quantise::ViewLayout& view,
                                   const RankLayout& trainer, const MatrixAmax& amax);

// Collects the messages of the other ranks. Every part of a matrix must come from exactly one rank.
// Lifecycle: view and trainer outlive it. Threads: one at a time.
class OtherAmax {
 public:
  OtherAmax(AmaxSubject subject, const quantise::ViewLayout& view, const RankLayout& trainer);

  // INVALID_ARGUMENT: it is no message about this view at this version of this stream, or a part in
  // it has another size than the matrix, or is another rank's already.
  Status Add(ByteSpan message);
  // In the form that MatrixAmax takes. FAILED_PRECONDITION: the ranks do not have all parts, or cut
  // a tensor differently; names the tensor.
  Result<MatrixAmax::Others> Finish() &&;

 private:
  // A part of the matrices numbered `matrices`, which is number `part` of their parts.
  struct Place {
    size_t matrices = 0;
    uint32_t part = 0;
  };
  // Nullopt: this rank has nothing of these matrices, or all of them.
  std::optional<Place> PlaceOf(const quantise::ViewLayout::MatrixTensor& tensor,
                               uint32_t slice) const;

  const AmaxSubject subject_;
  const quantise::ViewLayout& view_;
  const RankLayout& trainer_;
  // By the lanes of the spec.
  std::map<std::pair<uint64_t, uint64_t>, const quantise::ViewLayout::MatrixTensor*> tensors_;
  MatrixAmax::Others amax_;
  std::vector<std::vector<bool>> known_;  // by view_.matrices(), of divided ones: their parts
};

}  // namespace dws
