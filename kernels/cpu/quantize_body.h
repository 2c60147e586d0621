// Quantised activations, written once for every ISA; see kernel_bodies.h.

// Quantises up to kRows rows of a group that has places for kPlaces rows. The 16 lanes process one
// block of 32 values each, so that the reductions inside blocks share their shuffles. Lane i has
// row i % kRows of block i / kRows. Lanes past the last row write the values of the last row to the
// unused places. Lanes past the last block repeat the last block, and store the same values once
// more.
template <int kRows, int kPlaces>
void QuantizeRows(const QuantizeWork& work) {
  constexpr int kBlocks = kLanes / kRows;
  const float* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = work.input + SmallerOf(r, work.num_rows - 1) * work.cols;
  }
  // `out` is a copy. Otherwise the compiler must assume that the stores of codes may overwrite
  // `work`.
  const QuantizedRows out = work.out;
  const int64_t end = work.end_block;
  for (int64_t first = work.first_block; first < end; first += kBlocks) {
    const int64_t blocks = SmallerOf(kBlocks, end - first);
    const auto block_of = [&](int lane) { return first + SmallerOf(lane / kRows, blocks - 1); };
    const auto input_of = [&](int lane) { return rows[lane % kRows] + 32 * block_of(lane); };

    // Magnitudes are compared by their bits, as integers, so that a NaN or an infinity is the
    // largest and reaches the outputs.
    const VecI magnitude = SetI(0x7fffffff);
    VecI largest[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float* x = input_of(i);
      largest[i] = MaxI(AndI(Bits(Load(x)), magnitude), AndI(Bits(Load(x + 16)), magnitude));
    }
    const VecF scales = Div(FromBits(LargestOfEach(largest)), Set(127.0f));
    alignas(64) float inverse[kLanes];
    Store(inverse, Select(Less(Zero(), scales), Div(Set(1.0f), scales), Zero()));

    VecI codes[2][kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float* x = input_of(i);
      int8_t* q = out.q + 32 * (kPlaces * block_of(i) + i % kRows);
      for (int half = 0; half < 2; ++half) {
        const VecF scaled = Mul(Load(x + 16 * half), Set(inverse[i]));
        const VecF clamped = Min(Max(scaled, Set(-127.0f)), Set(127.0f));
        // Adding `magic`, which is 1.5 * 2^23, rounds to nearest even and leaves the integer in the
        // low bits.
        const VecF magic = Set(12582912.0f);
        codes[half][i] = AddI(Bits(Add(clamped, magic)), SetI(-0x4b400000));
        StoreS8(q + 16 * half, codes[half][i]);
      }
    }
    const VecI sums[2] = {SumOfEach(codes[0]), SumOfEach(codes[1])};
    const VecF scaled_sums = Mul(scales, ToFloat(AddI(sums[0], sums[1])));

    float* const scale = out.scale + kPlaces * first;
    float* const scaled_sum = out.scaled_sum + kPlaces * first;
    int32_t* const sum = out.sums + 2 * kPlaces * first;
    if constexpr (kRows == kLanes) {
      Store(scale, scales);
      Store(scaled_sum, scaled_sums);
      for (int half = 0; half < 2; ++half) StoreI(sum + kPlaces * half, sums[half]);
      continue;
    }
    alignas(64) float floats[2][kLanes];
    alignas(64) int32_t ints[2][kLanes];
    Store(floats[0], scales);
    Store(floats[1], scaled_sums);
    for (int half = 0; half < 2; ++half) StoreI(ints[half], sums[half]);
    for (int64_t b = 0; b < blocks; ++b) {
      __builtin_memcpy(scale + kPlaces * b, floats[0] + kRows * b, 4 * kRows);
      __builtin_memcpy(scaled_sum + kPlaces * b, floats[1] + kRows * b, 4 * kRows);
      for (int half = 0; half < 2; ++half) {
        __builtin_memcpy(sum + kPlaces * (2 * b + half), ints[half] + kRows * b, 4 * kRows);
      }
    }
  }
}

void Quantize(const QuantizeWork& work) {
  if (work.out.group_rows == 1) return QuantizeRows<1, 1>(work);
  if (work.num_rows <= 2) return QuantizeRows<2, 16>(work);
  if (work.num_rows <= 4) return QuantizeRows<4, 16>(work);
  if (work.num_rows <= 8) return QuantizeRows<8, 16>(work);
  QuantizeRows<16, 16>(work);
}
