// Where a command writes: two descriptors, and what is known of the terminal behind them.
#pragma once

#include <cstddef>
#include <string_view>

namespace dws::dwsctl {

// Lifecycle: neither opens nor closes the descriptors. Threads: one at a time.
class Console {
 public:
  Console(int out, int error) : out_(out), error_(error) {}

  // Writes all of `text`. False from the first failure on: nobody reads any more (`head` has seen
  // enough), or the disk is full. A command that prints for long stops then.
  bool Out(std::string_view text);
  // For messages and progress; a failure is nobody's business.
  void Error(std::string_view text);

  // errno of the first failed write to the output, unless its reader just went away; else 0.
  int out_errno() const { return out_errno_; }

  // To poll for POLLERR: its reader went away.
  int out() const { return out_; }

  bool out_is_terminal() const;
  bool error_is_terminal() const;
  // Colour on the output: a terminal that is not "dumb", and NO_COLOR is not set.
  bool colour() const;
  // Of the terminal as it is now, else of $COLUMNS and $LINES, else 80 and 24. At least 20 and 2.
  size_t columns() const;
  size_t rows() const;

 private:
  const int out_;
  const int error_;
  bool out_open_ = true;
  int out_errno_ = 0;
};

}  // namespace dws::dwsctl
