// The output of a command: two descriptors, and the properties of the terminal behind them.
#pragma once

#include <cstddef>
#include <string_view>

namespace dws::dwsctl {

// The outputs of a command. Lifecycle: neither opens nor closes the descriptors. Threads: one at a
// time.
class Console {
 public:
  Console(int out, int error) : out_(out), error_(error) {}

  // Writes all of `text`. Returns false from the first failure on: the reader has gone away (as
  // `head` does), or the disk is full. A command with much output stops then.
  bool Out(std::string_view text);
  // For messages and progress. Failures are ignored.
  void Error(std::string_view text);

  // errno of the first failed write to the output, except when its reader went away; else 0.
  int out_errno() const { return out_errno_; }

  // For poll: POLLERR means that its reader went away.
  int out() const { return out_; }

  bool out_is_terminal() const;
  bool error_is_terminal() const;
  // Returns whether to use colour: the output is a terminal that is not "dumb", and NO_COLOR is not
  // set.
  bool colour() const;
  // The current size of the terminal, else $COLUMNS and $LINES, else 80 and 24. At least 20 and 2.
  size_t columns() const;
  size_t rows() const;

 private:
  const int out_;
  const int error_;
  bool out_open_ = true;
  int out_errno_ = 0;
};

}  // namespace dws::dwsctl
