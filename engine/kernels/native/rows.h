// What happens to single rows between the products: embedding, normalisation, rotation and storing.
#pragma once

#include <algorithm>

#include "linear.h"
#include "vector.h"

namespace promptmill {

// A row of the table is a column of its packed layout: its words lie a panel's width apart.
template <class Element>
void embed_row(const PackedWeight& table, int token, float scale, float* residual) {
  const uint32_t* from = table.words +
                         size_t(token / kPanel) * table.num_in_words * kPanel + token % kPanel;
  for (int word = 0; word < table.num_in_words; ++word, from += kPanel) {
    typename Element::Stored values[Element::kPerWord];
    std::memcpy(values, from, sizeof values);
    for (const auto value : values) *residual++ = Element::widen(value) * scale;
  }
}

template <class Element>
float inverse_root_mean_square(const typename Element::Stored* x, int width, float eps) {
  Vector squares{};
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    const Vector value = Element::load_wide(x + column);
    squares += value * value;
  }
  float total = sum(squares);
  for (; column < width; ++column) {
    const float value = Element::widen(x[column]);
    total += value * value;
  }
  return 1.0f / std::sqrt(total / width + eps);
}

// From and to may be the same row.
template <class From, class To>
void normalise_row(const typename From::Stored* x, const float* weight, int width, float eps,
                   typename To::Stored* out) {
  const float scale = inverse_root_mean_square<From>(x, width, eps);
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    To::store_narrow(out + column, From::load_wide(x + column) * scale * load(weight + column));
  }
  for (; column < width; ++column) {
    out[column] = To::narrow(From::widen(x[column]) * scale * weight[column]);
  }
}

template <class Element>
void add_normalised_row(const typename Element::Stored* x, const float* weight, int width,
                        float eps, float* residual) {
  const float scale = inverse_root_mean_square<Element>(x, width, eps);
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    const Vector normed = Element::load_wide(x + column) * scale * load(weight + column);
    store(residual + column, load(residual + column) + normed);
  }
  for (; column < width; ++column) {
    residual[column] += Element::widen(x[column]) * scale * weight[column];
  }
}

template <class Element>
void narrow_row(const float* x, int width, typename Element::Stored* out) {
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    Element::store_narrow(out + column, load(x + column));
  }
  for (; column < width; ++column) out[column] = Element::narrow(x[column]);
}

// Quantise a row to bytes around Int8::kZero; return what one step of a byte stands for.
template <class Element>
float quantise_row(const typename Element::Stored* x, int width, uint8_t* out) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  Vector sizes{};
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    const Vector value = Element::load_wide(x + column);
    sizes = larger(sizes, larger(value, -value));
  }
  float largest_size = largest(sizes);
  for (; column < width; ++column) {
    largest_size = std::max(largest_size, std::fabs(Element::widen(x[column])));
  }
  const float inverse = largest_size > 0 ? 127.0f / largest_size : 0.0f;
  for (column = 0; column + kLanes <= width; column += kLanes) {
    const Integers whole = nearest(Element::load_wide(x + column) * inverse);
    const Bytes bytes = __builtin_convertvector(whole + Int8::kZero, Bytes);
    std::memcpy(out + column, &bytes, sizeof bytes);
  }
  for (; column < width; ++column) {
    out[column] = static_cast<uint8_t>(nearest(Element::widen(x[column]) * inverse) + Int8::kZero);
  }
  return largest_size / 127.0f;
}

// Turn one head in place: its two halves are the coordinates (transformers' rotate_half).
template <class Element>
void rotate_head(typename Element::Stored* head, const float* cosines, const float* sines,
                 int half) {
  int place = 0;
  for (; place + kLanes <= half; place += kLanes) {
    const Vector first = Element::load_wide(head + place);
    const Vector second = Element::load_wide(head + half + place);
    const Vector cosine = load(cosines + place), sine = load(sines + place);
    Element::store_narrow(head + place, first * cosine - second * sine);
    Element::store_narrow(head + half + place, second * cosine + first * sine);
  }
  for (; place < half; ++place) {
    const float first = Element::widen(head[place]);
    const float second = Element::widen(head[half + place]);
    head[place] = Element::narrow(first * cosines[place] - second * sines[place]);
    head[half + place] = Element::narrow(second * cosines[place] + first * sines[place]);
  }
}

}  // namespace promptmill
