// packed_snapshot.cpp: packs the figures of a snapshot one after another, as numbers of variable length.
#include "packed_snapshot.h"

#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace stagespan {

namespace {

/// Appends numbers: seven bits in each byte, the lowest first; the highest bit says that another byte follows.
class Writer {
 public:
  void operator()(std::unsigned_integral auto number) {
    std::uint64_t value = number;
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  void operator()(double value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    text_.append(bytes, sizeof(bytes));
  }
  void operator()(std::string_view value) {
    (*this)(value.size());
    text_ += value;
  }
  void operator()(const BucketCounts& buckets) {
    (*this)(buckets.size());
    std::uint32_t previous = 0;
    for (const auto& [bucket, count] : buckets) {
      (*this)(bucket - std::exchange(previous, bucket));
      (*this)(count);
    }
  }
  template <class Key, class Value, class Visit>
  void entries(const std::map<Key, Value>& map, const Visit& visit) {
    (*this)(map.size());
    for (const auto& [key, value] : map) {
      (*this)(key);
      visit(value);
    }
  }
  std::string take() {
    text_.shrink_to_fit();
    return std::move(text_);
  }

 private:
  std::string text_;
};

/// Reads what a Writer has written, in the same order.
class Reader {
 public:
  explicit Reader(const std::string& text) : at_(text.data()) {}

  template <std::unsigned_integral Number>
  void operator()(Number& number) {
    std::uint64_t value = 0;
    int shift = 0;
    unsigned char byte = 0;
    do {
      byte = static_cast<unsigned char>(*at_++);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      shift += 7;
    } while ((byte & 0x80) != 0);
    number = static_cast<Number>(value);
  }
  void operator()(double& value) { std::memcpy(&value, std::exchange(at_, at_ + sizeof(value)), sizeof(value)); }
  void operator()(std::string& text) {
    const auto size = next<std::size_t>();
    text.assign(std::exchange(at_, at_ + size), size);
  }
  void operator()(BucketCounts& buckets) {
    buckets.resize(next<std::size_t>());
    std::uint32_t previous = 0;
    for (auto& [bucket, count] : buckets) {
      bucket = previous += next<std::uint32_t>();
      (*this)(count);
    }
  }
  template <class Key, class Value, class Visit>
  void entries(std::map<Key, Value>& map, const Visit& visit) {
    for (auto left = next<std::size_t>(); left != 0; --left) visit(map[next<Key>()]);
  }

 private:
  template <class Value>
  Value next() {
    Value value{};
    (*this)(value);
    return value;
  }

  const char* at_;
};

// The order of the figures, once for a Writer of constant ones, and a Reader of others.

template <class Archive, class Of>
void visit_durations(Archive& archive, Of& of) {
  archive(of.count);
  if (of.count == 0) return;
  archive(of.sum_ticks);
  archive(of.min_ticks);
  archive(of.max_ticks);
  archive(of.buckets);
}

template <class Archive, class Of>
void visit_amounts(Archive& archive, Of& of) {
  archive(of.count);
  if (of.count == 0) return;
  archive(of.sum);
  archive(of.least);
  archive(of.most);
  archive(of.fractions);
  archive(of.buckets);
}

template <class Archive, class Stages>
void visit_stages(Archive& archive, Stages& stages) {
  archive.entries(stages, [&archive](auto& figures) {
    visit_durations(archive, figures.host);
    archive(figures.errors);
    archive(figures.suspended_ticks);
    archive(figures.children_ticks);
    archive(figures.cpu_ns);
    archive(figures.cpu_count);
    archive.entries(figures.parents, [&archive](auto& edge) {
      archive(edge.count);
      archive(edge.sum_ticks);
    });
    archive.entries(figures.work, [&archive](auto& amount) { archive(amount); });
    archive.entries(figures.amounts, [&archive](auto& amounts) { visit_amounts(archive, amounts); });
    visit_amounts(archive, figures.batch_size);
    for (auto& figure : figures.device) visit_durations(archive, figure);
  });
}

}  // namespace

PackedSnapshot::PackedSnapshot(const Snapshot& snapshot) {
  without_stages_.number = snapshot.number;
  without_stages_.ticks = snapshot.ticks;
  without_stages_.unix_ns = snapshot.unix_ns;
  without_stages_.ns_per_tick = snapshot.ns_per_tick;
  without_stages_.resets = snapshot.resets;
  without_stages_.is_exact = snapshot.is_exact;
  Writer writer;
  visit_stages(writer, snapshot.stages);
  packed_ = writer.take();
}

Snapshot PackedSnapshot::unpack() const {
  Snapshot snapshot = without_stages_;
  Reader reader(packed_);
  visit_stages(reader, snapshot.stages);
  return snapshot;
}

}  // namespace stagespan
