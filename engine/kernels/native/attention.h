// Attention over the paged cache for any mix of prompt chunks and single tokens.
//
// A tile is a few query rows (tokens times the query heads that share a key head) of one sequence.
// It walks its sequence's blocks in spans, keeping a running maximum and sum (Milakov and
// Gimelshein 2018; FlashAttention, Dao et al. 2022). Spans lie at fixed places of the context and a
// row for which a span holds nothing is left exactly as it was, so a row's result does not depend
// on the rows beside it or on how its prompt was cut into chunks.
//
// A step reads each cached key and value about once, from memory and block by block, too scattered
// for the processor to foresee. So while keys are scored the same blocks' values are fetched, and
// while values are added the keys of the next tile.
#pragma once

#include <algorithm>

#include "rows.h"
#include "vector.h"

namespace promptmill {

constexpr int kQueryRows = 6;
constexpr int kSpan = 128;
constexpr int kOutVectors = kLanes == 16 ? 4 : 2;

template <class Element>
struct Attention {
  using Stored = typename Element::Stored;
  static constexpr int P = Element::kPerWord;

  Cache<Element> cache;
  int num_heads;
  float scale;
  int window;     // 0: none
  float softcap;  // 0: none

  struct Tile {
    const Stored* queries[kQueryRows];
    Stored* outs[kQueryRows];
    int positions[kQueryRows];
    const int32_t* blocks;
    int head;
    int context;  // slots beyond it may hold anything
    const int32_t* next_blocks;  // of the tile this thread will probably run next
    int num_next_blocks;
    int next_head;
  };

  template <int kRows>
  void run(const Tile& tile, float* scratch) const {
    const int head_dim = cache.head_dim;
    const int last = tile.positions[kRows - 1];
    const int first = window ? std::max(0, tile.positions[0] - window + 1) : 0;
    float* sums = scratch;  // [kRows][head_dim]
    std::fill(sums, sums + kRows * head_dim, 0.0f);
    float maxima[kRows], totals[kRows];
    for (int row = 0; row < kRows; ++row) maxima[row] = -1e30f, totals[row] = 0;
    for (int start = first / kSpan * kSpan; start <= last; start += kSpan) {
      alignas(64) float scores[kRows][kSpan];
      alignas(64) Stored weights[kRows][kSpan];
      const int num_seen = std::min(kSpan, last + 1 - start);
      score_span<kRows>(tile, start, num_seen, scores);
      for (int row = 0; row < kRows; ++row) {
        const float shrink = weigh(scores[row], start, num_seen, tile.positions[row], maxima[row],
                                   totals[row], weights[row]);
        if (shrink == 1.0f) continue;
        for (int dim = 0; dim < head_dim; ++dim) sums[row * head_dim + dim] *= shrink;
      }
      add_values<kRows>(tile, start, num_seen, weights, sums);
    }
    for (int row = 0; row < kRows; ++row) {
      for (int dim = 0; dim < head_dim; ++dim) {
        tile.outs[row][dim] = Element::narrow(sums[row * head_dim + dim] / totals[row]);
      }
    }
  }

 private:
  // Score a span's keys, a few vectors of positions at a time so that enough sums are under way.
  template <int kRows>
  void score_span(const Tile& tile, int start, int num_seen, float (&scores)[kRows][kSpan]) const {
    if (cache.block_size % kLanes) {
      for (int place = 0; place < num_seen; ++place) {
        for (int row = 0; row < kRows; ++row) {
          scores[row][place] = score_one(tile, tile.queries[row], start + place);
        }
      }
      return;
    }
    constexpr int kParts = kRows <= 3 ? 4 : 2;
    for (int place = 0; place < num_seen; place += kParts * kLanes) {
      const uint32_t* keys[kParts];
      const uint32_t* values[kParts];
      for (int part = 0; part < kParts; ++part) {
        // Beyond what is seen any key will do: its score is hidden later.
        const int seen = place + part * kLanes < num_seen ? place + part * kLanes : place;
        const int block = tile.blocks[(start + seen) / cache.block_size];
        const size_t first = cache.head_at(block, tile.head) / P + (start + seen) % cache.block_size;
        keys[part] = reinterpret_cast<const uint32_t*>(cache.keys) + first;
        values[part] = reinterpret_cast<const uint32_t*>(cache.values) + first;
      }
      score_parts<kRows, kParts>(tile, keys, values, place, scores);
    }
  }

  template <int kRows, int kParts>
  void score_parts(const Tile& tile, const uint32_t* (&keys)[kParts],
                   const uint32_t* (&values)[kParts], int place,
                   float (&scores)[kRows][kSpan]) const {
    const int num_words = cache.head_dim / P;
    Vector sums[kRows][kParts];
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) sums[row][part] = Vector{};
    }
    for (int word = 0; word < num_words; ++word) {
      Words parts[kParts];
      for (int part = 0; part < kParts; ++part) {
        parts[part] = load_words(keys[part] + word * cache.block_size);
        __builtin_prefetch(values[part] + word * cache.block_size);
      }
#pragma GCC unroll 6
      for (int row = 0; row < kRows; ++row) {
        const Words query = splat_word(load_as<uint32_t>(tile.queries[row] + word * P));
        for (int part = 0; part < kParts; ++part) {
          sums[row][part] = Element::dot(sums[row][part], parts[part], query);
        }
      }
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) {
        store(scores[row] + place + part * kLanes, sums[row][part]);
      }
    }
  }

  // Return the next tile's keys that lie as far into its context as this position does into ours.
  const Stored* next_keys(const Tile& tile, int position) const {
    const int index = std::min(position / cache.block_size, tile.num_next_blocks - 1);
    return cache.keys + cache.head_at(tile.next_blocks[index], tile.next_head) +
           size_t(position % cache.block_size) * cache.head_dim;
  }

  float score_one(const Tile& tile, const Stored* query, int position) const {
    const int block = tile.blocks[position / cache.block_size];
    const Stored* keys = cache.keys + cache.head_at(block, tile.head);
    const int place = position % cache.block_size;
    float total = 0;
    for (int dim = 0; dim < cache.head_dim; ++dim) {
      const size_t index = (size_t(dim / P) * cache.block_size + place) * P + dim % P;
      total += Element::widen(keys[index]) * Element::widen(query[dim]);
    }
    return total;
  }

  // Turn a row's scores into weights; return by how much earlier sums shrink.
  float weigh(float* scores, int start, int num_seen, int position, float& maximum, float& total,
              Stored* weights) const {
    const int from = window ? std::max(0, position - window + 1 - start) : 0;
    const int to = std::min(num_seen, position + 1 - start);
    const int padded = ceil_to_lanes(num_seen);
    for (int place = 0; place < padded; place += kLanes) {
      Vector value = load(scores + place) * scale;
      if (softcap > 0) value = softcap * hyperbolic_tangent(value / softcap);
      store(scores + place, value);
    }
    for (int place = 0; place < std::min(from, padded); ++place) scores[place] = -INFINITY;
    for (int place = std::max(to, 0); place < padded; ++place) scores[place] = -INFINITY;
    Vector best = splat(-1e30f);
    for (int place = 0; place < padded; place += kLanes) {
      best = larger(best, load(scores + place));
    }
    const float new_maximum = std::max(maximum, largest(best));
    Vector added{};
    for (int place = 0; place < padded; place += kLanes) {
      const Vector score = load(scores + place);
      const Vector weight = score > -1e30f ? exponential(score - new_maximum) : Vector{};
      Element::store_narrow(weights + place, weight);
      added += weight;
    }
    const float shrink = maximum == new_maximum ? 1.0f : exponential(splat(maximum - new_maximum))[0];
    total = total * shrink + sum(added);
    maximum = new_maximum;
    return shrink;
  }

  template <int kRows>
  void add_values(const Tile& tile, int start, int num_seen, const Stored (&weights)[kRows][kSpan],
                  float* sums) const {
    int dim = 0;
    for (; dim + kOutVectors * kLanes <= cache.head_dim; dim += kOutVectors * kLanes) {
      add_dims<kRows, kOutVectors>(tile, start, num_seen, weights, sums, dim);
    }
    for (; dim + kLanes <= cache.head_dim; dim += kLanes) {
      add_dims<kRows, 1>(tile, start, num_seen, weights, sums, dim);
    }
    for (; dim < cache.head_dim; ++dim) add_dim<kRows>(tile, start, num_seen, weights, sums, dim);
  }

  template <int kRows, int kParts>
  void add_dims(const Tile& tile, int start, int num_seen, const Stored (&weights)[kRows][kSpan],
                float* sums, int dim) const {
    Vector totals[kRows][kParts];
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) {
        totals[row][part] = load(sums + row * cache.head_dim + dim + part * kLanes);
      }
    }
    for (int place = 0; place < num_seen;) {
      const Stored* values = value_words(tile, start + place) + dim * P;
      const Stored* soon = next_keys(tile, start + place) + dim * P;
      const int end = std::min(num_seen, place + cache.block_size - (start + place) % cache.block_size);
      for (; place < end; place += P, values += cache.head_dim * P, soon += cache.head_dim * P) {
        // The last word's second half may lie beyond the context and hold anything.
        const bool is_half = P == 2 && start + place + 1 >= tile.context;
        Words parts[kParts];
        for (int part = 0; part < kParts; ++part) {
          parts[part] = load_as<Words>(values + part * kLanes * P);
          if (is_half) parts[part] &= 0x0000ffffu;
          __builtin_prefetch(soon + part * kLanes * P);
        }
#pragma GCC unroll 6
        for (int row = 0; row < kRows; ++row) {
          const Words weight = splat_word(load_as<uint32_t>(weights[row] + place));
          for (int part = 0; part < kParts; ++part) {
            totals[row][part] = Element::dot(totals[row][part], parts[part], weight);
          }
        }
      }
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) {
        store(sums + row * cache.head_dim + dim + part * kLanes, totals[row][part]);
      }
    }
  }

  // Return the values of this position, whose place within its block is even where two share words.
  const Stored* value_words(const Tile& tile, int position) const {
    const int block = tile.blocks[position / cache.block_size];
    return cache.values + cache.head_at(block, tile.head) +
           size_t(position % cache.block_size) * cache.head_dim;
  }

  template <int kRows>
  void add_dim(const Tile& tile, int start, int num_seen, const Stored (&weights)[kRows][kSpan],
               float* sums, int dim) const {
    for (int place = 0; place < num_seen; ++place) {
      const int position = start + place;
      const int block = tile.blocks[position / cache.block_size];
      const int within = position % cache.block_size;
      const float value = Element::widen(
          cache.values[cache.head_at(block, tile.head) +
                       (size_t(within / P) * cache.head_dim + dim) * P + within % P]);
      for (int row = 0; row < kRows; ++row) {
        sums[row * cache.head_dim + dim] += value * Element::widen(weights[row][place]);
      }
    }
  }

  static int ceil_to_lanes(int count) { return (count + kLanes - 1) / kLanes * kLanes; }
};

}  // namespace promptmill
