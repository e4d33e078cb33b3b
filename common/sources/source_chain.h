// The one way for bytes: asks the sources of a version in their order until everything that is
// wanted has come, and tells who brought how much and why the others were passed over.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/liveness.h"
#include "common/base/threads/mutex.h"
#include "common/model/delta_manifest.h"
#include "common/sources/source.h"

namespace dws {

// Stages a delta, or does something else with it.
class DeltaTaker {
 public:
  virtual ~DeltaTaker() = default;

  // Like FrameTaker. If `spool` is a whole object, FetchedDelta has it later: the frames stay
  // valid.
  virtual Status Take(std::span<const SpooledFrame> frames, const Spool& spool) = 0;
  // Returns whether it has taken this frame.
  virtual bool Has(RankSlice slice, const FrameEntry& entry) const = 0;
};

// A delta whose wanted frames were taken.
struct FetchedDelta {
  DeltaManifest manifest;
  uint64_t bytes = 0;  // that came
  // If it came as a whole: the object, or its part with the wanted slices, and the frames in it.
  std::optional<Spool> object;
  std::vector<SpooledFrame> frames;
};

// Lifecycle: as long as the sources. Threads: safe from any. Errors: those of Source.
class SourceChain {
 public:
  struct Options {
    std::vector<std::string> senders = {};  // by SenderIndex, for messages
    // The only source of full tensors that may be used, by name; none: all. Where it reads a
    // sender's memory and does not bring everything, the transfer fails and the sender is told
    // (FullWant::refuse): a newer version may come by it.
    std::optional<std::string> only_full = std::nullopt;
    Liveness* liveness = nullptr;          // waits while a source is read; may be null
    Cancellation* cancellation = nullptr;  // ends all transfers, present and future; may be null
  };
  // The last transfer from a sender.
  struct Last {
    std::string source;  // that brought most of it; empty: nothing came yet
    std::string detail;  // Source::detail
    std::string reason;  // why it did not come from an earlier source; empty: it was the first
  };
  struct Total {
    std::string_view source;
    Content content;
    uint64_t bytes;
  };

  // `sources`: best first. If slices from the last source of full tensors have wrong digests, the
  // chain reads them there once more, unless it reads a sender's memory.
  SourceChain(std::vector<Source*> sources, Options options);

  // Reads a delta. Published: the first source that has it returns the whole of it. In the making:
  // the first source that reads captures passes the frames on as they arrive; if that read breaks
  // and the version is published by then, the chain fetches the missing frames as a part of the
  // object. Errors of the taker and of ParseObject, too.
  Result<FetchedDelta> Delta(const Piece& piece, const DeltaWant& want, const Spool::Options& spool,
                             DeltaTaker& taker);
  // A published delta object, or the part of it with the wanted slices, unread.
  Result<Spool> Object(const Piece& piece, const DeltaWant& want, const Spool::Options& spool);
  // Full tensors. Complete slices that are not as published are read again.
  Result<FetchedFull> Full(const Piece& piece, const FullWant& want, Spool::Options spool);

  // Returns whether a version can be read while it is captured, and should be.
  bool reads_captures(Content content, const Piece& piece) const {
    return CaptureReader(content, piece) != nullptr;
  }

  // The version was rejected.
  void Refused(const Piece& piece);

  Last last(SenderIndex sender, Content content) const;
  // What each source that can bring some has brought since the start, in their order.
  std::vector<Total> totals() const;

 private:
  struct Transfer;

  bool MayRead(Content content, const Source& source) const;
  std::vector<Source*> Candidates(Content content) const;
  // Returns the source that reads the version while it is captured; null: none does, or should.
  Source* CaptureReader(Content content, const Piece& piece) const;
  Result<FetchedDelta> DeltaInTheMaking(const Piece& piece, const DeltaWant& want,
                                        const Spool::Options& spool, DeltaTaker& taker);
  // Reads the manifest of a delta that is published by now, and the frames that the taker lacks.
  Status ReadRest(const Piece& piece, const DeltaWant& want, const Spool::Options& spool,
                  DeltaTaker& taker, FetchedDelta& delta);
  // Reads a sender's memory (MemoryReader).
  Status ReadMemory(Source& source, Transfer& transfer, FullAssembly& assembly);
  // Reads a source of full tensors and drops the slices that turn out to be wrong; the last source
  // brings them again. OK: nothing is missing.
  Status ReadFull(Source& source, bool last, Transfer& transfer, FullAssembly& assembly);
  // Reads what the capture of a version brings until it ends. Then the version is published and
  // described. UNAVAILABLE: it is gone.
  Status ReadCapture(Transfer& transfer, FullAssembly& assembly);
  // The only source that may be used has failed because of `why`.
  Status Missed(const Source& source, const Transfer& transfer, const FullAssembly& assembly,
                const Status& why);
  // Logs it if it has not failed so before.
  void PassedOver(const Source& source, Transfer& transfer, const Status& why);
  void Succeeded(const Source& source, const Transfer& transfer);
  void Note(const Transfer& transfer);
  bool cancelled() const {
    return options_.cancellation != nullptr && options_.cancellation->cancelled();
  }
  bool Sleep(Duration time);

  const std::vector<Source*> sources_;
  const Options options_;
  mutable Mutex mutex_;
  std::map<std::pair<SenderIndex, Content>, Last> last_ GUARDED_BY(mutex_);
  std::map<std::pair<const Source*, Content>, uint64_t> bytes_ GUARDED_BY(mutex_);
  // With which code a source failed last for a sender; none: it did not fail. It is logged.
  std::map<std::tuple<const Source*, Content, SenderIndex>, absl::StatusCode> failing_
      GUARDED_BY(mutex_);
};

}  // namespace dws
