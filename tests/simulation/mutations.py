"""Plants the mutations of the simulation in copies of product code: python3 mutations.py SOURCE... OUT_FOLDER

A mutation breaks a rule on purpose, to show that the simulation detects it. Each is an edit of a line of the product, guarded
by `Mutated(Mutation::kName)` (options.h): off, the copy does what the original does. An edit whose text is no longer in its
file exactly once fails the build, so the mutations stay in the code that ships.
"""
from __future__ import annotations

import pathlib
import sys
from typing import NamedTuple


class Edit(NamedTuple):
    """One line of a product file, and its replacement."""

    source: str
    old: str
    new: str


def mutated(name: str) -> str:
    return f"sim::Mutated(sim::Mutation::{name})"


def _edits() -> list[Edit]:
    return _of_bytes() + _of_receivers() + _of_groups()


def _of_bytes() -> list[Edit]:
    return [
        # A delta is staged whatever memory it meets.
        Edit(
            "receiver_daemon/weights/staging.cc",
            "switch (JudgeSlice(live, delta, predicted)) {",
            f"switch ({mutated('kSkipBaseCheck')} ? SliceVerdict::kAdmitted : JudgeSlice(live, delta, predicted)) {{",
        ),
        # Full tensors are compared neither when they arrive nor when they are written.
        Edit(
            "receiver_daemon/weights/staging.cc",
            "if (digest != expected[slice.value()]) {",
            f"if (digest != expected[slice.value()] && !{mutated('kSkipFullCheck')}) {{",
        ),
        Edit(
            "receiver_daemon/commit/commit_pipeline.cc",
            "if (states[i].Matches(expected)) continue;",
            f"if (states[i].Matches(expected) || {mutated('kSkipFullCheck')}) continue;",
        ),
        Edit(
            "common/spool/full_assembly.cc",
            "if (!complete || digest == want_.expected[whole.slice.value()]) continue;",
            f"if (!complete || digest == want_.expected[whole.slice.value()] || {mutated('kSkipFullCheck')}) continue;",
        ),
        # What the first source does not bring is given up.
        Edit(
            "common/sources/source_chain.cc",
            "if (absl::IsCancelled(last) || absl::IsResourceExhausted(last)) return last;",
            "if (absl::IsCancelled(last) || absl::IsResourceExhausted(last) || "
            f"{mutated('kOneDeltaSource')}) return last;",
        ),
        Edit(
            "common/sources/source_chain.cc",
            "if (source == candidates.back()) return last;",
            f"if (source == candidates.back() || {mutated('kOneFullSource')}) return last;",
        ),
    ]


def _of_receivers() -> list[Edit]:
    return [
        # An engine that attaches is assumed to hold the last committed version.
        Edit(
            "receiver_daemon/commit/prepare.cc",
            "if (!SlicesThatDiffer(slices, rank.published).empty()) return std::optional<Prepared>();",
            "if (!SlicesThatDiffer(slices, rank.published).empty() && "
            f"!{mutated('kTrustLedger')}) return std::optional<Prepared>();",
        ),
        # A commit that failed in the middle still resumes the engine.
        Edit(
            "receiver_daemon/commit/commit_pipeline.cc",
            "    case CommitState::AfterError::kStayPaused:\n",
            "    case CommitState::AfterError::kStayPaused:\n"
            f"      if ({mutated('kResumeTorn')} && attempt.live.at.has_value()) {{\n"
            "        (void)attempt.engine.control.Resume(VersionOf(attempt.live));\n"
            "      }\n",
        ),
        # The state of an engine's memory is assumed for the engine that attaches next.
        Edit(
            "receiver_daemon/worker/live_engine.cc",
            "  Forget();\n  before_ = before;\n",
            f"  if (!{mutated('kIgnoreGeneration')}) Forget();\n  before_ = before;\n",
        ),
        # After a commit that failed in the middle the old version counts as there.
        Edit(
            "receiver_daemon/commit/commit_pipeline.cc",
            "      attempt.live.Forget();\n      return cause;\n",
            f"      if (!{mutated('kKeepTorn')}) attempt.live.Forget();\n      return cause;\n",
        ),
        # A version that is held back is committed between boundaries.
        Edit(
            "receiver_daemon/worker/solo_driver.cc",
            "  return parts_.boundary.Hold();\n",
            f"  return parts_.boundary.Hold() || {mutated('kIgnorePolicy')};\n",
        ),
        # A receiver stages past its cap.
        Edit(
            "receiver_daemon/commit/prepare.cc",
            "return RankStagingMax(options_.staging_bytes_max, job.target.ranks.size());",
            f"return {mutated('kStageTooMuch')} ? UINT64_MAX\n"
            "             : RankStagingMax(options_.staging_bytes_max, job.target.ranks.size());",
        ),
    ]


def _of_groups() -> list[Edit]:
    return [
        # A leader accepts a late COMMITTED as the answer to its last COMMIT.
        Edit(
            "common/sync_state/group_leader_state.cc",
            "if (!member.told.has_value() || committed.round != member.told->round ||\n",
            f"if (!member.told.has_value() ||\n      (committed.round != member.told->round && !{mutated('kAcceptStaleNonce')}) ||\n",
        ),
        # A leader that loses a member in a COMMIT releases the others.
        Edit(
            "common/sync_state/group_leader_state.cc",
            "if (round_->phase != Phase::kCommitting) return Abort();\n",
            "if (round_->phase != Phase::kCommitting) return Abort();\n"
            f"  for (uint32_t m = 0; {mutated('kReleaseAfterLoss')} && m < members_.size(); ++m) {{\n"
            "    const Member& other = members_[m];\n"
            "    if (!other.live.has_value() || !other.generation.has_value()) continue;\n"
            "    Send(m, NextNonce(), GroupResume{.version = *other.live, .generation = *other.generation});\n"
            "  }\n",
        ),
        # A leader orders a commit that it has not recorded.
        Edit(
            "common/sync_state/group_leader_state.cc",
            "  round_->phase = Phase::kDeciding;\n",
            f"  if ({mutated('kSkipDecision')}) {{\n"
            "    round_->phase = Phase::kPausing;\n"
            "    actions_.emplace_back(PauseEngine{.round = round_->nonce});\n"
            "    return;\n"
            "  }\n"
            "  round_->phase = Phase::kDeciding;\n",
        ),
    ]


def _plant(path: str, text: str) -> str:
    for edit in _edits():
        if edit.source != path:
            continue
        found = text.count(edit.old)
        if found != 1:
            raise SystemExit(f"mutations.py: {path} has {found} times, expected once:\n{edit.old}")
        text = text.replace(edit.old, edit.new)
    return f'#include "tests/simulation/options.h"\n{text}'


def main() -> None:
    """Copies the sources, with the mutations planted, into the folder."""
    *sources, folder = sys.argv[1:]
    if {edit.source for edit in _edits()} != set(sources):
        raise SystemExit(f"mutations.py: the sources are {sources}, the edits are of others")
    for source in sources:
        copy = pathlib.Path(folder) / ("mutated_" + pathlib.Path(source).name)
        copy.write_text(_plant(source, pathlib.Path(source).read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
