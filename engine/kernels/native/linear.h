// Matrix products with weights packed once: rows of x times a panel of weight columns.
//
// A panel is kPanel columns; for each word of the input dimension its columns lie side by side, so
// the inner loop reads the panel from front to back. A tile of up to kTile rows keeps all its sums
// in registers. Every sum runs over the input in the same order whatever the tile, so a row's
// result does not depend on the rows beside it. What becomes of the sums is the Sink's business.
#pragma once

#include <algorithm>
#include <memory>

#include "pool.h"
#include "vector.h"

namespace promptmill {

constexpr int kVectors = 2;
constexpr int kPanel = kVectors * kLanes;
constexpr int kTile = kLanes == 16 ? 12 : 6;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// A packed weight: [panels][words][kPanel], short panels filled with zeros. Quantised ones have
// scales, which lie as the columns do: [panels][groups][kPanel] for half bytes, and for bytes
// [panels][kPanel], with what the rows' zero adds to each column's sum.
struct PackedWeight {
  const uint32_t* words;
  int num_in_words;
  int num_out;
  const float* scales;     // null: not quantised
  const int32_t* offsets;  // null: not bytes
  int group_size;          // 0: not half bytes
};

constexpr int kHalvesPerWord = 8;

inline size_t packed_words(int num_out, int num_in_words) {
  return size_t(ceil_div(num_out, kPanel)) * num_in_words * kPanel;
}

// is_gated: a panel holds kLanes gate columns and the kLanes up columns that belong to them.
inline void pack(const uint32_t* weight, int num_out, int num_in_words, bool is_gated,
                 uint32_t* packed) {
  const int half = num_out / 2;
  for (int panel = 0; panel < ceil_div(num_out, kPanel); ++panel) {
    for (int word = 0; word < num_in_words; ++word) {
      for (int place = 0; place < kPanel; ++place, ++packed) {
        int column = panel * kPanel + place;
        if (is_gated) {
          const int within = panel * kLanes + place % kLanes;
          column = within >= half ? num_out : within + (place < kLanes ? 0 : half);
        }
        *packed = column < num_out ? weight[size_t(column) * num_in_words + word] : 0;
      }
    }
  }
}

// Below this many rows the processor's own prefetching keeps up.
constexpr int kRowsWorthFetching = 4;
constexpr int kLineBytes = 64;

// Memory that is wanted soon, and how many bytes of it to fetch with each word of a tile.
struct Ahead {
  const char* at;
  int step;
};

// The results go to memory only at the end: as long as the loops below are unrolled, the sums
// themselves stay in registers, however large the code is that uses the results.
template <class Element, int kRows>
inline void multiply_tile(const uint32_t* x, size_t stride, const uint32_t* panel, int num_words,
                          Ahead ahead, typename Element::Sum (&results)[kRows][kVectors]) {
  typename Element::Sum sums[kRows][kVectors];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kVectors; ++part) sums[row][part] = typename Element::Sum{};
  }
  for (int word = 0; word < num_words; ++word, panel += kPanel, ahead.at += ahead.step) {
    __builtin_prefetch(ahead.at);
    if (ahead.step > kLineBytes) __builtin_prefetch(ahead.at + kLineBytes);
    Words columns[kVectors];
    for (int part = 0; part < kVectors; ++part) columns[part] = load_words(panel + part * kLanes);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Words value = splat_word(x[row * stride + word]);
      for (int part = 0; part < kVectors; ++part) {
        sums[row][part] = Element::dot(sums[row][part], columns[part], value);
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kVectors; ++part) results[row][part] = sums[row][part];
  }
}

// The words of one panel, how many there are for each row and column, and what is read after them.
//
// With few rows a panel takes about as long to come from memory as to compute with. The first tile
// would wait for all of it and the others find it in cache; so each fetches its part of the next.
struct Panel {
  const uint32_t* words;
  int num_in_words;
  int index;
  int num_rows;
  const uint32_t* next;  // null: nothing is fetched

  Ahead ahead(int first_row, int num_tile_rows) const {
    if (next == nullptr) return {reinterpret_cast<const char*>(words), 0};
    const int64_t row_bytes = kPanel * sizeof(uint32_t);
    return {reinterpret_cast<const char*>(next) + num_in_words * row_bytes * first_row / num_rows,
            static_cast<int>(row_bytes * num_tile_rows / num_rows)};
  }
};

// Compute num_rows rows of one panel, kRows at a time; what is left goes to smaller tiles.
template <class Element, int kRows, class Sink>
void multiply_rows(const uint32_t* x, const Panel& panel, int first_row, int num_rows,
                   const Sink& sink) {
  const size_t stride = panel.num_in_words;
  for (; num_rows >= kRows; num_rows -= kRows, first_row += kRows) {
    typename Element::Sum results[kRows][kVectors];
    multiply_tile<Element, kRows>(x + first_row * stride, stride, panel.words, panel.num_in_words,
                                  panel.ahead(first_row, kRows), results);
#pragma GCC unroll 1
    for (int row = 0; row < kRows; ++row) sink(first_row + row, panel.index, results[row]);
  }
  if constexpr (kRows > 1) {
    if (num_rows) multiply_rows<Element, kRows - 1>(x, panel, first_row, num_rows, sink);
  }
}

// Split rows into tiles of nearly equal height: three of 11 beat two of 12 and one of 9.
template <class Element, int kRows, class Sink>
void multiply_evenly(const uint32_t* x, const Panel& panel, int num_rows, int height,
                     const Sink& sink) {
  if constexpr (kRows > 1) {
    if (height < kRows) {
      multiply_evenly<Element, kRows - 1>(x, panel, num_rows, height, sink);
      return;
    }
  }
  multiply_rows<Element, kRows>(x, panel, 0, num_rows, sink);
}

// Choose tasks of at least some microseconds, but several for each thread.
inline int panels_per_task(const Pool& pool, const PackedWeight& weight, int num_rows) {
  const int64_t panel_work = std::max<int64_t>(1, int64_t(num_rows) * weight.num_in_words);
  const int worthwhile = static_cast<int>(std::max<int64_t>(1, 40000 / panel_work));
  const int num_panels = ceil_div(weight.num_out, kPanel);
  return std::max(1, std::min(worthwhile, num_panels / (pool.num_threads() * 4)));
}

template <class Element, class Sink>
void multiply(Pool& pool, const void* x, const PackedWeight& weight, int num_rows, int grain,
              const Sink& sink) {
  if (num_rows == 0) return;
  const int num_panels = ceil_div(weight.num_out, kPanel);
  const int height = ceil_div(num_rows, ceil_div(num_rows, kTile));
  const auto words_of = [&](int index) {
    return weight.words + size_t(index) * weight.num_in_words * kPanel;
  };
  pool.share(ceil_div(num_panels, grain), [&](int task, int) {
    const int end = std::min(num_panels, (task + 1) * grain);
    for (int index = task * grain; index < end; ++index) {
      // Threads take tasks in turn, so this one's next is probably the one after the others'.
      const int next = index + 1 < end ? index + 1 : (task + pool.num_threads()) * grain;
      const bool is_fetched = next < num_panels && height >= kRowsWorthFetching;
      const Panel panel{words_of(index), weight.num_in_words, index, num_rows,
                        is_fetched ? words_of(next) : nullptr};
      multiply_evenly<Element, kTile>(static_cast<const uint32_t*>(x), panel, num_rows, height,
                                      sink);
    }
  });
}

// Write a panel of half bytes, eight inputs to a word, as elements.
template <class Element>
void dequantise_panel(const PackedWeight& weight, int index, uint32_t* words) {
  const uint32_t* packed = weight.words + size_t(index) * weight.num_in_words * kPanel;
  const int num_groups = ceil_div(weight.num_in_words * kHalvesPerWord, weight.group_size);
  const float* scales = weight.scales + size_t(index) * num_groups * kPanel;
  for (int word = 0; word < weight.num_in_words; ++word, packed += kPanel) {
    const float* of_group = scales + word * kHalvesPerWord / weight.group_size * kPanel;
    for (int part = 0; part < kVectors; ++part) {
      const Words halves = load_words(packed + part * kLanes);
      Vector values[kHalvesPerWord];
      for (int half = 0; half < kHalvesPerWord; ++half) {
        const Integers whole = bits_as<Integers>((halves >> (4 * half)) & 15) - 8;
        values[half] = __builtin_convertvector(whole, Vector) * load(of_group + part * kLanes);
      }
      for (int half = 0; half < kHalvesPerWord; half += Element::kPerWord) {
        const int to = word * kHalvesPerWord + half;
        const Words joined = Element::join(values + half);
        std::memcpy(words + size_t(to / Element::kPerWord) * kPanel + part * kLanes, &joined,
                    sizeof joined);
      }
    }
  }
}

// Multiply with a weight of half bytes: each panel is written out once, for all rows.
template <class Element, class Sink>
void multiply_halves(Pool& pool, const void* x, const PackedWeight& weight, int num_rows,
                     int grain, const Sink& sink) {
  if (num_rows == 0) return;
  const int num_panels = ceil_div(weight.num_out, kPanel);
  const int height = ceil_div(num_rows, ceil_div(num_rows, kTile));
  const int num_words = weight.num_in_words * kHalvesPerWord / Element::kPerWord;
  pool.share(ceil_div(num_panels, grain), [&](int task, int) {
    const std::unique_ptr<uint32_t[]> words(new uint32_t[size_t(num_words) * kPanel]);
    const int end = std::min(num_panels, (task + 1) * grain);
    for (int index = task * grain; index < end; ++index) {
      dequantise_panel<Element>(weight, index, words.get());
      const Panel panel{words.get(), num_words, index, num_rows, nullptr};
      multiply_evenly<Element, kTile>(static_cast<const uint32_t*>(x), panel, num_rows, height,
                                      sink);
    }
  });
}

// Turn exact sums of a quantised product into what they stand for, and hand them on.
template <class Sink>
struct Dequantise {
  Sink sink;
  const float* row_scales;
  const float* column_scales;
  const int32_t* offsets;

  void operator()(int row, int panel, const Integers (&sums)[kVectors]) const {
    Vector values[kVectors];
    for (int part = 0; part < kVectors; ++part) {
      const int column = panel * kPanel + part * kLanes;
      const Integers exact = sums[part] - load_as<Integers>(offsets + column);
      values[part] = __builtin_convertvector(exact, Vector) *
                     (load(column_scales + column) * row_scales[row]);
    }
    sink(row, panel, values);
  }
};

// Write the sums, with a bias, as elements.
template <class Element>
struct WriteElements {
  typename Element::Stored* out;
  const float* bias;  // padded to whole panels, or null
  int num_out;

  void operator()(int row, int panel, const Vector (&sums)[kVectors]) const {
    for (int part = 0; part < kVectors; ++part) {
      const int column = panel * kPanel + part * kLanes;
      const Vector value = bias ? sums[part] + load(bias + column) : sums[part];
      typename Element::Stored* to = out + size_t(row) * num_out + column;
      if (column + kLanes <= num_out) {
        Element::store_narrow(to, value);
      } else {
        for (int lane = 0; column + lane < num_out; ++lane) to[lane] = Element::narrow(value[lane]);
      }
    }
  }
};

// Add the sums to float rows: the residual stream.
struct AddToResidual {
  float* residual;
  int num_out;

  void operator()(int row, int panel, const Vector (&sums)[kVectors]) const {
    for (int part = 0; part < kVectors; ++part) {
      const int column = panel * kPanel + part * kLanes;
      float* to = residual + size_t(row) * num_out + column;
      if (column + kLanes <= num_out) {
        store(to, load(to) + sums[part]);
      } else {
        for (int lane = 0; column + lane < num_out; ++lane) to[lane] += sums[part][lane];
      }
    }
  }
};

inline Vector silu(Vector x) { return x / (1.0f + exponential(-x)); }

inline Vector gelu_tanh(Vector x) {
  const Vector inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
}

// Write activation(gate) * up of a gated weight.
template <class Element, bool kIsGelu>
struct WriteGated {
  typename Element::Stored* out;
  int num_out;  // after gating

  void operator()(int row, int panel, const Vector (&sums)[kVectors]) const {
    const Vector gate = kIsGelu ? gelu_tanh(sums[0]) : silu(sums[0]);
    const Vector value = gate * sums[1];
    const int column = panel * kLanes;
    typename Element::Stored* to = out + size_t(row) * num_out + column;
    if (column + kLanes <= num_out) {
      Element::store_narrow(to, value);
    } else {
      for (int lane = 0; column + lane < num_out; ++lane) to[lane] = Element::narrow(value[lane]);
    }
  }
};

// Write float scores, each bent by softcap * tanh(score / softcap) if there is a softcap.
struct WriteScores {
  float* out;
  int num_out;
  float softcap;

  void operator()(int row, int panel, const Vector (&sums)[kVectors]) const {
    for (int part = 0; part < kVectors; ++part) {
      const int column = panel * kPanel + part * kLanes;
      Vector value = sums[part];
      if (softcap > 0) value = softcap * hyperbolic_tangent(value / softcap);
      float* to = out + size_t(row) * num_out + column;
      if (column + kLanes <= num_out) {
        store(to, value);
      } else {
        for (int lane = 0; column + lane < num_out; ++lane) to[lane] = value[lane];
      }
    }
  }
};

// Keep the best column of each lane over a task's panels; the scores themselves are never stored.
// Of equal scores the lowest column wins.
struct KeepBest {
  static constexpr int kPanelsPerTask = 32;

  struct Best {
    Vector score;
    Integers panel;
  };

  Best* best;  // [tasks][rows][kVectors]
  int num_rows;
  int num_out;

  void operator()(int row, int panel, const Vector (&sums)[kVectors]) const {
    Best* of_row = best + (size_t(panel / kPanelsPerTask) * num_rows + row) * kVectors;
    const bool is_first = panel % kPanelsPerTask == 0;
    for (int part = 0; part < kVectors; ++part) {
      if (is_first) of_row[part] = {splat(-INFINITY), Integers{}};
      const Vector score = panel * kPanel + part * kLanes + kLanes <= num_out
                               ? sums[part]
                               : without_padding(sums[part], panel * kPanel + part * kLanes);
      const auto is_better = score > of_row[part].score;
      of_row[part].score = is_better ? score : of_row[part].score;
      of_row[part].panel = is_better ? Integers{} + panel : of_row[part].panel;
    }
  }

  Vector without_padding(Vector score, int column) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (column + lane >= num_out) score[lane] = -INFINITY;
    }
    return score;
  }

  int best_column(int row, int num_tasks) const {
    float best_score = -INFINITY;
    int best_column = 0;
    for (int task = 0; task < num_tasks; ++task) {
      const Best* of_row = best + (size_t(task) * num_rows + row) * kVectors;
      for (int lane = 0; lane < kPanel; ++lane) {
        const float score = of_row[lane / kLanes].score[lane % kLanes];
        const int column = of_row[lane / kLanes].panel[lane % kLanes] * kPanel + lane;
        if (score > best_score || (score == best_score && column < best_column)) {
          best_score = score;
          best_column = column;
        }
      }
    }
    return best_column;
  }
};

}  // namespace promptmill
