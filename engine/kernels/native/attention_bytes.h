// The products of attention with a cache of bytes: exact sums of whole numbers.
//
// Queries and weights would lose too much as single bytes, so each becomes two: a high one that
// counts kStep times a low one. Two products of bytes cost what one of bfloat16 costs, for half the
// memory. Scales of keys multiply scores; scales of values are multiplied into the weights before
// these are rounded, by the largest of their row and span. Nothing depends on other rows.
#pragma once

#include <algorithm>

#include "attention.h"
#include "cache.h"
#include "vector.h"

namespace promptmill {

template <class Element>
struct ByteProducts {
  using Place = Tile<Element>;
  static constexpr int P = Int8::kPerWord;

  ByteCache<Element> cache;

  // Rows of queries as whole numbers up to 127 * kStep, in signed bytes.
  template <int kRows>
  struct Queries {
    static constexpr int kStep = 128;
    static constexpr float kLargest = 127.0f * kStep;

    alignas(64) int8_t high[kRows][kLargestHead];
    alignas(64) int8_t low[kRows][kLargestHead];
    int32_t zeros[kRows];  // what keys raised by Int8::kZero add to each score
    float scales[kRows];

    Queries(const Place& tile, int head_dim) {
      for (int row = 0; row < kRows; ++row) split(tile.queries[row], row, head_dim);
    }

    void split(const typename Element::Stored* query, int row, int head_dim) {
      float size = 0;
      for (int dim = 0; dim < head_dim; ++dim) {
        size = std::max(size, std::fabs(Element::widen(query[dim])));
      }
      const float inverse = size > 0 ? kLargest / size : 0.0f;
      int32_t total = 0;
      for (int dim = 0; dim < head_dim; ++dim) {
        const int whole = nearest(Element::widen(query[dim]) * inverse);
        const int above = (whole + kStep * kStep + kStep / 2) / kStep - kStep;  // rounded
        high[row][dim] = static_cast<int8_t>(above);
        low[row][dim] = static_cast<int8_t>(whole - above * kStep);
        total += whole;
      }
      zeros[row] = total * Int8::kZero;
      scales[row] = size / kLargest;
    }
  };

  template <int kRows>
  void score(const Place& tile, const Queries<kRows>& queries, int start, int num_seen,
             float (&scores)[kRows][kSpan]) const {
    constexpr int kParts = kRows <= 3 ? 2 : 1;
    for (int place = 0; place < num_seen; place += kParts * kLanes) {
      const int8_t* keys[kParts];
      const int8_t* values[kParts];
      const float* scales[kParts];
      for (int part = 0; part < kParts; ++part) {
        // Beyond what is seen any key will do: its score is hidden later.
        const int seen = place + part * kLanes < num_seen ? place + part * kLanes : place;
        const int block = tile.blocks[(start + seen) / cache.block_size];
        const int within = (start + seen) % cache.block_size;
        keys[part] = cache.keys + cache.head_at(block, tile.head) + within * P;
        values[part] = cache.values + cache.head_at(block, tile.head) + within * P;
        scales[part] = cache.key_scales_at(block, tile.head) + within;
      }
      score_parts<kRows, kParts>(queries, keys, values, scales, place, scores);
    }
  }

  template <int kRows>
  void add_values(const Place& tile, int start, int num_seen, const float (&weights)[kRows][kSpan],
                  float* sums) const {
    const Weights<kRows> rounded(*this, tile, start, num_seen, weights);
    constexpr int kParts = kRows <= 3 ? 2 : 1;
    int dim = 0;
    for (; dim + kParts * kLanes <= cache.head_dim; dim += kParts * kLanes) {
      add_dims<kRows, kParts>(tile, start, num_seen, rounded, sums, dim);
    }
    for (; dim + kLanes <= cache.head_dim; dim += kLanes) {
      add_dims<kRows, 1>(tile, start, num_seen, rounded, sums, dim);
    }
    for (; dim < cache.head_dim; ++dim) add_dim(tile, start, num_seen, rounded, sums, dim);
  }

 private:
  template <int kRows, int kParts>
  void score_parts(const Queries<kRows>& queries, const int8_t* (&keys)[kParts],
                   const int8_t* (&values)[kParts], const float* (&scales)[kParts], int place,
                   float (&scores)[kRows][kSpan]) const {
    Integers highs[kRows][kParts], lows[kRows][kParts];
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) highs[row][part] = lows[row][part] = Integers{};
    }
    for (int dim = 0; dim < cache.head_dim; dim += P) {
      Words raised[kParts];
      for (int part = 0; part < kParts; ++part) {
        // Flipping its first bit adds Int8::kZero to a signed byte.
        raised[part] = load_as<Words>(keys[part] + dim * cache.block_size) ^ 0x80808080u;
        __builtin_prefetch(values[part] + dim * cache.block_size);
      }
#pragma GCC unroll 6
      for (int row = 0; row < kRows; ++row) {
        const Words high = splat_word(load_as<uint32_t>(queries.high[row] + dim));
        const Words low = splat_word(load_as<uint32_t>(queries.low[row] + dim));
        for (int part = 0; part < kParts; ++part) {
          highs[row][part] = Int8::dot(highs[row][part], high, raised[part]);
          lows[row][part] = Int8::dot(lows[row][part], low, raised[part]);
        }
      }
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) {
        const Integers exact = highs[row][part] * Queries<kRows>::kStep + lows[row][part];
        store(scores[row] + place + part * kLanes,
              __builtin_convertvector(exact - queries.zeros[row], Vector) *
                  (load(scales[part]) * queries.scales[row]));
      }
    }
  }

  // A span's weights times their values' scales, as whole numbers up to 65,535 in unsigned bytes.
  template <int kRows>
  struct Weights {
    static constexpr int kStep = 256;
    static constexpr float kLargest = 65535.0f;

    alignas(64) uint8_t high[kRows][kSpan];
    alignas(64) uint8_t low[kRows][kSpan];
    float scales[kRows];

    Weights(const ByteProducts& products, const Place& tile, int start, int num_seen,
            const float (&weights)[kRows][kSpan]) {
      typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
      for (int row = 0; row < kRows; ++row) {
        alignas(64) float scaled[kSpan];
        Vector best{};
        for (int place = 0; place < num_seen; place += kLanes) {
          const Vector weight = load(weights[row] + place);
          // The scale of what is not seen may be anything.
          const Vector value =
              weight > 0 ? weight * load(products.value_scales(tile, start + place)) : Vector{};
          store(scaled + place, value);
          best = larger(best, value);
        }
        const float size = largest(best);
        const float inverse = size > 0 ? kLargest / size : 0.0f;
        for (int place = 0; place < num_seen; place += kLanes) {
          const Integers whole = nearest(load(scaled + place) * inverse);
          const Bytes highs = __builtin_convertvector(whole >> 8, Bytes);
          const Bytes lows = __builtin_convertvector(whole & 255, Bytes);
          std::memcpy(high[row] + place, &highs, sizeof highs);
          std::memcpy(low[row] + place, &lows, sizeof lows);
        }
        scales[row] = size / kLargest;
      }
    }
  };

  template <int kRows, int kParts>
  void add_dims(const Place& tile, int start, int num_seen, const Weights<kRows>& weights,
                float* sums, int dim) const {
    Integers highs[kRows][kParts], lows[kRows][kParts];
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) highs[row][part] = lows[row][part] = Integers{};
    }
    for (int place = 0; place < num_seen;) {
      const int8_t* values = value_words(tile, start + place) + dim * P;
      const int8_t* soon = next_keys(tile, start + place) + dim * P;
      const int end = std::min(num_seen, place + cache.block_size - (start + place) % cache.block_size);
      for (; place < end; place += P, values += cache.head_dim * P, soon += cache.head_dim * P) {
        Words parts[kParts];
        for (int part = 0; part < kParts; ++part) {
          parts[part] = load_as<Words>(values + part * kLanes * P);
          __builtin_prefetch(soon + part * kLanes * P);
        }
#pragma GCC unroll 6
        for (int row = 0; row < kRows; ++row) {
          const Words high = splat_word(load_as<uint32_t>(weights.high[row] + place));
          const Words low = splat_word(load_as<uint32_t>(weights.low[row] + place));
          for (int part = 0; part < kParts; ++part) {
            highs[row][part] = Int8::dot(highs[row][part], parts[part], high);
            lows[row][part] = Int8::dot(lows[row][part], parts[part], low);
          }
        }
      }
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) {
        float* to = sums + row * cache.head_dim + dim + part * kLanes;
        const Integers exact = highs[row][part] * Weights<kRows>::kStep + lows[row][part];
        store(to, load(to) + __builtin_convertvector(exact, Vector) * weights.scales[row]);
      }
    }
  }

  template <int kRows>
  void add_dim(const Place& tile, int start, int num_seen, const Weights<kRows>& weights,
               float* sums, int dim) const {
    int32_t exact[kRows] = {};
    for (int place = 0; place < num_seen; ++place) {
      const int within = (start + place) % P;
      const int value = value_words(tile, start + place - within)[dim * P + within];
      for (int row = 0; row < kRows; ++row) {
        exact[row] += value * (weights.high[row][place] * Weights<kRows>::kStep +
                               weights.low[row][place]);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      sums[row * cache.head_dim + dim] += static_cast<float>(exact[row]) * weights.scales[row];
    }
  }

  // Return the values of this position, the first of those that share words.
  const int8_t* value_words(const Place& tile, int position) const {
    const int block = tile.blocks[position / cache.block_size];
    return cache.values + cache.head_at(block, tile.head) +
           size_t(position % cache.block_size) * cache.head_dim;
  }

  const float* value_scales(const Place& tile, int position) const {
    const int block = tile.blocks[position / cache.block_size];
    return cache.value_scales_at(block, tile.head) + position % cache.block_size;
  }

  const int8_t* next_keys(const Place& tile, int position) const {
    const int block = tile.next_block(position, cache.block_size);
    return cache.keys + cache.head_at(block, tile.next_head) +
           size_t(position % cache.block_size) * cache.head_dim;
  }
};

}  // namespace promptmill
