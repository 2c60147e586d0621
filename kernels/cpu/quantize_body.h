// Quantised activations, written once for every ISA; see kernel_bodies.h.

// Quantises up to 16 blocks of 32 values together, so that the reductions inside blocks share their
// shuffles. Block i begins at input + i * stride; `count` blocks exist. The codes of block i are
// stored at q + 32 * i, its scale at scale[i]; lane i of sums[half] is the sum of 16 of its codes.
inline void QuantizeBlocks(const float* input, int64_t stride, int count, int8_t* q, float* scale,
                           float* scaled_sum, VecI (&sums)[2]) {
  // The largest bit pattern is taken, so that a NaN or an infinity reaches the outputs.
  const VecI magnitude = SetI(0x7fffffff);
  VecI largest[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const float* x = input + SmallerOf(i, count - 1) * stride;
    largest[i] = MaxI(AndI(Bits(Load(x)), magnitude), AndI(Bits(Load(x + 16)), magnitude));
  }
  const VecF scales = Div(FromBits(LargestOfEach(largest)), Set(127.0f));
  alignas(64) float inverse[kLanes];
  Store(inverse, Select(Less(Zero(), scales), Div(Set(1.0f), scales), Zero()));

  VecI codes[2][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const float* x = input + SmallerOf(i, count - 1) * stride;
    for (int half = 0; half < 2; ++half) {
      const VecF scaled = Mul(Load(x + 16 * half), Set(inverse[i]));
      const VecF clamped = Min(Max(scaled, Set(-127.0f)), Set(127.0f));
      const VecF magic = Set(12582912.0f);  // rounds to nearest even, leaving the integer below
      codes[half][i] = AddI(Bits(Add(clamped, magic)), SetI(-0x4b400000));
      if (i < count) StoreS8(q + 32 * i + 16 * half, codes[half][i]);
    }
  }
  for (int half = 0; half < 2; ++half) sums[half] = SumOfEach(codes[half]);
  StoreN(scale, scales, count);
  StoreN(scaled_sum, Mul(scales, ToFloat(AddI(sums[0], sums[1]))), count);
}

void Quantize(const QuantizeWork& work) {
  const QuantizedRows& out = work.out;
  const int64_t places = out.group_rows;
  VecI sums[2];
  if (places == 1) {
    for (int64_t b = work.first_block; b < work.end_block; b += kLanes) {
      const int count = static_cast<int>(SmallerOf(kLanes, work.end_block - b));
      QuantizeBlocks(work.input + 32 * b, 32, count, out.q + 32 * b, out.scale + b,
                     out.scaled_sum + b, sums);
      alignas(64) int32_t lanes[2][kLanes];
      for (int half = 0; half < 2; ++half) StoreI(lanes[half], sums[half]);
      for (int i = 0; i < 2 * count; ++i) out.sums[2 * b + i] = lanes[i % 2][i / 2];
    }
    return;
  }
  for (int64_t b = work.first_block; b < work.end_block; ++b) {
    QuantizeBlocks(work.input + 32 * b, work.cols, static_cast<int>(work.num_rows),
                   out.q + 32 * b * places, out.scale + b * places, out.scaled_sum + b * places,
                   sums);
    for (int half = 0; half < 2; ++half) StoreI(out.sums + (2 * b + half) * places, sums[half]);
  }
}
