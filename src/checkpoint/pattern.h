// SPDX-License-Identifier: Apache-2.0
// Regular expressions of configurations. A configuration is not trusted, so matching takes time linear in the
// text whatever the expression is (std::regex may take exponential time, and its recursion can overflow the
// stack): all alternatives are followed at once, a character at a time.
//
// Known: literals, '.', [classes], \d \w \s and their opposites, groups, (?:groups), '|', '*', '+', '?',
// {m,n}, their lazy forms, '^', '$', \b, \B, and lookahead (?=...) and (?!...). Unknown, and refused:
// backreferences, lookbehind, flags.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::checkpoint {

class Pattern {
 public:
  /// Throws corrupt_file (bad_pattern); `file_name` is for the message.
  Pattern(std::string_view expression, const std::string& file_name);

  /// Whether the expression matches `text` from its start, as Python's re.match does: the end need not be
  /// reached.
  bool matches_start(std::string_view text) const { return run(programs_.back(), text, 0); }

  enum class Kind : std::uint8_t {
    character,
    split,
    jump,
    begin,
    end,
    edge,      // of a word
    not_edge,  // the opposite
    lookahead,
    not_lookahead,
    done
  };
  /// One step. `split` goes on at both offsets, `jump` at the first; everything else at the next step.
  struct Step {
    Kind kind;
    int first = 0;   // offset, or which set of `sets_` or which lookahead of `programs_`
    int second = 0;  // offset
  };
  using Program = std::vector<Step>;

 private:
  friend class PatternParser;
  bool run(const Program& program, std::string_view text, std::size_t from) const;
  bool passes(const Step& step, std::string_view text, std::size_t at) const;

  std::vector<std::bitset<256>> sets_;
  std::vector<Program> programs_;  // lookaheads first, the expression last
};

}  // namespace sluice::checkpoint
