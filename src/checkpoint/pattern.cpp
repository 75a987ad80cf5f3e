// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {

namespace {

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool at_edge_of_word(std::string_view text, std::size_t at) {
  return (at > 0 && is_word(text[at - 1])) != (at < text.size() && is_word(text[at]));
}

}  // namespace

/// A recursive descent over
///   alternatives = sequence ('|' sequence)*     sequence = (atom quantifier?)*
/// that emits steps with relative offsets, so that pieces can be joined without renumbering.
class PatternParser {
 public:
  PatternParser(Pattern& pattern, std::string_view text, const std::string& file_name)
      : pattern_(pattern), text_(text), file_name_(file_name) {}

  void parse() {
    // Programs grow with the square of nesting at worst; expressions of models have some thirty characters.
    if (text_.size() > 1000) refuse("it has more than 1000 characters");
    Program program = alternatives();
    if (at_ < text_.size()) refuse("a ')' closes nothing");
    program.push_back({Kind::done});
    pattern_.programs_.push_back(std::move(program));
  }

 private:
  using Program = Pattern::Program;
  using Step = Pattern::Step;
  using Kind = Pattern::Kind;
  using Set = std::bitset<256>;

  [[noreturn]] void refuse(std::string_view why) const {
    fail(
        ErrorKind::corrupt_file,
        {.code = "bad_pattern",
         .what = fmt::format("the expression \"re:{}\" cannot be used", printable(text_)),
         .file = file_name_,
         .why = std::string(why),
         .todo =
             "Write the module's name out, or an expression of letters, '.', '*', '+', '?', '|', [] and ()"});
  }

  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  static int size(const Program& program) { return static_cast<int>(program.size()); }
  static void append(Program& to, const Program& from) { to.insert(to.end(), from.begin(), from.end()); }

  Program alternatives() {
    if (++depth_ > 32) refuse("its groups are nested more than 32 deep");
    Program left = sequence();
    while (take("|")) {
      const Program right = sequence();
      Program both{{Kind::split, 1, size(left) + 2}};
      append(both, left);
      both.push_back({Kind::jump, size(right) + 1});
      append(both, right);
      left = std::move(both);
    }
    --depth_;
    return left;
  }

  Program sequence() {
    Program program;
    while (more() && text_[at_] != '|' && text_[at_] != ')') append(program, quantified(atom()));
    return program;
  }

  Program quantified(Program one) {
    const int n = size(one);
    if (take("*")) {
      one.insert(one.begin(), {Kind::split, 1, n + 2});
      one.push_back({Kind::jump, -(n + 1)});
    } else if (take("+")) {
      one.push_back({Kind::split, -n, 1});
    } else if (take("?")) {
      one.insert(one.begin(), {Kind::split, 1, n + 1});
    } else if (take("{")) {
      one = repeated(one);
    } else {
      return one;
    }
    take("?");  // lazy: which way is tried first makes no difference to whether there is a match
    if (more() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?' || text_[at_] == '{'))
      refuse("a quantifier repeats nothing");
    return one;
  }

  /// A number of at most three digits; -1 where there is none.
  int number() {
    int value = -1;
    for (int digits = 0; more() && text_[at_] >= '0' && text_[at_] <= '9'; ++digits) {
      if (digits == 3) refuse("{m,n} of more than 999");
      value = std::max(value, 0) * 10 + (text_[at_++] - '0');
    }
    return value;
  }

  /// What follows "{", as often as it says: copies that must be there, and then copies that may be, or a
  /// loop.
  Program repeated(const Program& one) {
    const int least = number();
    const bool range = take(",");
    const int most = range ? number() : least;
    if (!take("}") || (least < 0 && (!range || most < 0)) || (most >= 0 && most < least))
      refuse("{m,n} makes no sense; write \\{ for the character");
    const int copies = std::max({least, most, 0});
    constexpr std::size_t kSteps = 2'000;  // nested, {m,n} multiply
    if (one.size() * static_cast<std::size_t>(copies + 1) > kSteps) refuse("{m,n} repeats too much");
    Program all;
    for (int i = 0; i < least; ++i) append(all, one);
    if (range && most < 0) {
      all.push_back({Kind::split, 1, size(one) + 2});
      append(all, one);
      all.push_back({Kind::jump, -(size(one) + 1)});
      return all;
    }
    for (int i = std::max(least, 0); i < most; ++i) {
      all.push_back({Kind::split, 1, (most - i) * (size(one) + 1)});
      append(all, one);
    }
    return all;
  }

  Program atom() {
    if (take("(?=")) return {{Kind::lookahead, look()}};
    if (take("(?!")) return {{Kind::not_lookahead, look()}};
    if (take("(?:")) return group();
    if (take("(?")) refuse("(?...) other than (?:, (?= and (?! is not known");
    if (take("(")) return group();
    if (take("[")) return one_of(character_class());
    if (take("^")) return {{Kind::begin}};
    if (take("$")) return {{Kind::end}};
    if (take(".")) return one_of(~Set().set('\n'));
    if (take("\\b")) return {{Kind::edge}};
    if (take("\\B")) return {{Kind::not_edge}};
    if (take("\\")) return one_of(escape());
    const char c = text_[at_++];
    if (c == '*' || c == '+' || c == '?' || c == '{') refuse("a quantifier repeats nothing");
    return one_of(Set().set(static_cast<unsigned char>(c)));
  }

  Program group() {
    Program inside = alternatives();
    if (!take(")")) refuse("a '(' is not closed");
    return inside;
  }

  int look() {
    if (++looks_ > 2) refuse("lookaheads are nested more than two deep");
    Program inside = group();
    --looks_;
    inside.push_back({Kind::done});
    pattern_.programs_.push_back(std::move(inside));
    return static_cast<int>(pattern_.programs_.size()) - 1;
  }

  Program one_of(const Set& set) {
    pattern_.sets_.push_back(set);
    return {{Kind::character, static_cast<int>(pattern_.sets_.size()) - 1}};
  }

  static Set range(unsigned char first, unsigned char last) {
    Set set;
    for (int c = first; c <= last; ++c) set.set(static_cast<std::size_t>(c));
    return set;
  }

  /// What stands after a backslash.
  Set escape() {
    if (!more()) refuse("a backslash ends it");
    const char c = text_[at_++];
    const Set digit = range('0', '9');
    const Set word = digit | range('a', 'z') | range('A', 'Z') | Set().set('_');
    const Set space = range('\t', '\r') | Set().set(' ');
    switch (c) {
      case 'd':
        return digit;
      case 'D':
        return ~digit;
      case 'w':
        return word;
      case 'W':
        return ~word;
      case 's':
        return space;
      case 'S':
        return ~space;
      default:
        break;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (word[byte]) refuse(fmt::format("\\{} is not known", c));
    return Set().set(byte);
  }

  Set character_class() {
    const bool opposite = take("^");
    Set set;
    for (bool first = true; first || !take("]"); first = false) {
      if (!more()) refuse("a '[' is not closed");
      if (take("\\")) {
        set |= escape();
        continue;
      }
      const auto from = static_cast<unsigned char>(text_[at_++]);
      const bool is_range = at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']';
      const auto to = is_range ? static_cast<unsigned char>(text_[at_ + 1]) : from;
      if (is_range) at_ += 2;
      if (to < from || (is_range && to == '\\')) refuse("a range in [...] makes no sense");
      set |= range(from, to);
    }
    return opposite ? ~set : set;
  }

  Pattern& pattern_;
  std::string_view text_;
  const std::string& file_name_;
  std::size_t at_ = 0;
  int depth_ = 0, looks_ = 0;
};

Pattern::Pattern(std::string_view expression, const std::string& file_name) {
  PatternParser(*this, expression, file_name).parse();
}

bool Pattern::passes(const Step& step, std::string_view text, std::size_t at) const {
  switch (step.kind) {
    case Kind::begin:
      return at == 0;
    case Kind::end:
      return at == text.size();
    case Kind::edge:
      return at_edge_of_word(text, at);
    case Kind::not_edge:
      return !at_edge_of_word(text, at);
    case Kind::lookahead:
      return run(programs_[static_cast<std::size_t>(step.first)], text, at);
    case Kind::not_lookahead:
      return !run(programs_[static_cast<std::size_t>(step.first)], text, at);
    default:
      return true;
  }
}

bool Pattern::run(const Program& program, std::string_view text, std::size_t from) const {
  std::vector<int> now{0}, next;
  std::vector<std::size_t> seen(program.size(),
                                text.size() + 1);  // at which position a step was last followed
  for (std::size_t at = from; !now.empty(); ++at) {
    // `now` grows while it is walked: steps that consume nothing are followed at once.
    for (std::size_t i = 0; i < now.size(); ++i) {
      const int here = now[i];
      const Step& step = program[static_cast<std::size_t>(here)];
      if (std::exchange(seen[static_cast<std::size_t>(here)], at) == at) continue;
      if (step.kind == Kind::done) return true;
      if (step.kind == Kind::split || step.kind == Kind::jump) {
        now.push_back(here + step.first);
        if (step.kind == Kind::split) now.push_back(here + step.second);
      } else if (step.kind != Kind::character) {
        if (passes(step, text, at)) now.push_back(here + 1);
      } else if (at < text.size() &&
                 sets_[static_cast<std::size_t>(step.first)][static_cast<unsigned char>(text[at])]) {
        next.push_back(here + 1);
      }
    }
    now.swap(next);
    next.clear();
  }
  return false;
}

}  // namespace sluice::checkpoint
