// packed_snapshot.cpp: packs the figures of a snapshot one after another, as numbers of variable length.
#include "packed_snapshot.h"

#include <cstring>
#include <string_view>
#include <utility>

namespace stagespan {

namespace {

/// Appends numbers: seven bits in each byte, the lowest first; the highest bit says that another byte follows.
class Writer {
 public:
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  void text(std::string_view value) {
    number(value.size());
    text_ += value;
  }
  void fraction(double value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    text_.append(bytes, sizeof(bytes));
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

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }
  std::string text() {
    const std::size_t size = number();
    return {std::exchange(at_, at_ + size), size};
  }
  double fraction() {
    double value = 0;
    std::memcpy(&value, std::exchange(at_, at_ + sizeof(value)), sizeof(value));
    return value;
  }

 private:
  const char* at_;
};

void pack(Writer& writer, const BucketCounts& buckets) {
  writer.number(buckets.size());
  std::uint32_t previous = 0;
  for (const auto& [bucket, count] : buckets) {
    writer.number(bucket - std::exchange(previous, bucket));
    writer.number(count);
  }
}

void unpack(Reader& reader, BucketCounts& buckets) {
  buckets.resize(reader.number());
  std::uint32_t previous = 0;
  for (auto& [bucket, count] : buckets) {
    bucket = previous += static_cast<std::uint32_t>(reader.number());
    count = reader.number();
  }
}

void pack(Writer& writer, const Distribution& distribution) {
  writer.number(distribution.count);
  if (distribution.count == 0) return;
  writer.number(distribution.sum_ticks);
  writer.number(distribution.min_ticks);
  writer.number(distribution.max_ticks);
  pack(writer, distribution.buckets);
}

void pack(Writer& writer, const AmountDistribution& distribution) {
  writer.number(distribution.count);
  if (distribution.count == 0) return;
  writer.fraction(distribution.sum);
  writer.fraction(distribution.least);
  writer.fraction(distribution.most);
  writer.number(distribution.fractions);
  pack(writer, distribution.buckets);
}

void unpack(Reader& reader, AmountDistribution& distribution) {
  distribution.count = reader.number();
  if (distribution.count == 0) return;
  distribution.sum = reader.fraction();
  distribution.least = reader.fraction();
  distribution.most = reader.fraction();
  distribution.fractions = reader.number();
  unpack(reader, distribution.buckets);
}

void unpack(Reader& reader, Distribution& distribution) {
  distribution.count = reader.number();
  if (distribution.count == 0) return;
  distribution.sum_ticks = reader.number();
  distribution.min_ticks = reader.number();
  distribution.max_ticks = reader.number();
  unpack(reader, distribution.buckets);
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
  writer.number(snapshot.stages.size());
  for (const auto& [stage, figures] : snapshot.stages) {
    writer.number(stage);
    pack(writer, figures.host);
    writer.number(figures.errors);
    writer.number(figures.suspended_ticks);
    writer.number(figures.children_ticks);
    writer.number(figures.cpu_ns);
    writer.number(figures.cpu_count);
    writer.number(figures.parents.size());
    for (const auto& [parent, edge] : figures.parents) {
      writer.number(parent);
      writer.number(edge.count);
      writer.number(edge.sum_ticks);
    }
    writer.number(figures.work.size());
    for (const auto& [key, amount] : figures.work) {
      writer.text(key);
      writer.fraction(amount);
    }
    writer.number(figures.amounts.size());
    for (const auto& [key, amounts] : figures.amounts) {
      writer.text(key);
      pack(writer, amounts);
    }
    pack(writer, figures.batch_size);
    for (const Distribution& figure : figures.device) pack(writer, figure);
  }
  packed_ = writer.take();
}

Snapshot PackedSnapshot::unpack() const {
  Snapshot snapshot = without_stages_;
  Reader reader(packed_);
  for (std::uint64_t left = reader.number(); left != 0; --left) {
    const auto stage = static_cast<std::uint32_t>(reader.number());
    StageFigures& figures = snapshot.stages[stage];
    stagespan::unpack(reader, figures.host);
    figures.errors = reader.number();
    figures.suspended_ticks = reader.number();
    figures.children_ticks = reader.number();
    figures.cpu_ns = reader.number();
    figures.cpu_count = reader.number();
    for (std::uint64_t parents = reader.number(); parents != 0; --parents) {
      EdgeFigures& edge = figures.parents[static_cast<std::uint32_t>(reader.number())];
      edge.count = reader.number();
      edge.sum_ticks = reader.number();
    }
    for (std::uint64_t counters = reader.number(); counters != 0; --counters) {
      const std::string key = reader.text();
      figures.work[key] = reader.fraction();
    }
    for (std::uint64_t units = reader.number(); units != 0; --units) {
      const std::string key = reader.text();
      stagespan::unpack(reader, figures.amounts[key]);
    }
    stagespan::unpack(reader, figures.batch_size);
    for (Distribution& figure : figures.device) stagespan::unpack(reader, figure);
  }
  return snapshot;
}

}  // namespace stagespan
