// The products of attention with a cache of the model's type: words of P terms of one sum.
#pragma once

#include <algorithm>

#include "attention.h"
#include "cache.h"
#include "vector.h"

namespace promptmill {

constexpr int kOutVectors = kLanes == 16 ? 4 : 2;

template <class Element>
struct WordProducts {
  using Stored = typename Element::Stored;
  using Place = Tile<Element>;
  static constexpr int P = Element::kPerWord;

  WordCache<Element> cache;

  // Queries are used as they are.
  template <int kRows>
  struct Queries {
    const Stored* const* rows;
    Queries(const Place& tile, int) : rows(tile.queries) {}
  };

  // Score a span's keys, a few vectors of positions at a time so that enough sums are under way.
  template <int kRows>
  void score(const Place& tile, const Queries<kRows>& queries, int start, int num_seen,
             float (&scores)[kRows][kSpan]) const {
    if (cache.block_size % kLanes) {
      for (int place = 0; place < num_seen; ++place) {
        for (int row = 0; row < kRows; ++row) {
          scores[row][place] = score_one(tile, queries.rows[row], start + place);
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
      score_parts<kRows, kParts>(queries, keys, values, place, scores);
    }
  }

  template <int kRows>
  void add_values(const Place& tile, int start, int num_seen, const float (&weights)[kRows][kSpan],
                  float* sums) const {
    alignas(64) Stored narrow[kRows][kSpan];
    for (int row = 0; row < kRows; ++row) {
      for (int place = 0; place < num_seen; place += kLanes) {
        Element::store_narrow(narrow[row] + place, load(weights[row] + place));
      }
    }
    int dim = 0;
    for (; dim + kOutVectors * kLanes <= cache.head_dim; dim += kOutVectors * kLanes) {
      add_dims<kRows, kOutVectors>(tile, start, num_seen, narrow, sums, dim);
    }
    for (; dim + kLanes <= cache.head_dim; dim += kLanes) {
      add_dims<kRows, 1>(tile, start, num_seen, narrow, sums, dim);
    }
    for (; dim < cache.head_dim; ++dim) add_dim<kRows>(tile, start, num_seen, narrow, sums, dim);
  }

 private:
  template <int kRows, int kParts>
  void score_parts(const Queries<kRows>& queries, const uint32_t* (&keys)[kParts],
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
        const Words query = splat_word(load_as<uint32_t>(queries.rows[row] + word * P));
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

  float score_one(const Place& tile, const Stored* query, int position) const {
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

  template <int kRows, int kParts>
  void add_dims(const Place& tile, int start, int num_seen, const Stored (&weights)[kRows][kSpan],
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
  const Stored* value_words(const Place& tile, int position) const {
    const int block = tile.blocks[position / cache.block_size];
    return cache.values + cache.head_at(block, tile.head) +
           size_t(position % cache.block_size) * cache.head_dim;
  }

  template <int kRows>
  void add_dim(const Place& tile, int start, int num_seen, const Stored (&weights)[kRows][kSpan],
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

  // Return the next tile's keys that lie as far into its context as this position does into ours.
  const Stored* next_keys(const Place& tile, int position) const {
    const int block = tile.next_block(position, cache.block_size);
    return cache.keys + cache.head_at(block, tile.next_head) +
           size_t(position % cache.block_size) * cache.head_dim;
  }
};

}  // namespace promptmill
