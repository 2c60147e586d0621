#!/usr/bin/env bash
# Installs the peers of bench/peers/compare.py: OpenVINO GenAI in a virtual environment of its own, llama.cpp built
# for this machine from llama-cpp-python's source package, and SmolLM2-135M-Instruct in each weight type.
#
#   bench/peers/setup.sh [DIRECTORY]     default: build/peers
#
# The first run takes about 10 minutes on two idle cores. A later run finds everything installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
directory=${1:-build/peers}
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)

if ! [ -x "$directory/openvino/bin/python" ]; then
  python3 -m venv "$directory/openvino"
  "$directory/openvino/bin/pip" install --quiet openvino-genai==2026.4.1.0 numpy
fi

if ! [ -x "$directory/llama/bin/llama-server" ] || ! [ -x "$directory/llama/bin/llama-quantize" ]; then
  python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$directory" llama-cpp-python==0.3.36
  tar -xzf "$directory"/llama_cpp_python-*.tar.gz -C "$directory"
  cmake -S "$directory"/llama_cpp_python-*/vendor/llama.cpp -B "$directory/llama" -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=OFF
  cmake --build "$directory/llama" --target llama-server llama-quantize -- -j"$(nproc)"
fi

# Converts the fetched file (Q4_1), so that every program reads the same weights. In 4-bit files the head is Q6_K.
model=$(scripts/get_model.sh smollm2-135m-instruct)
for type in q4_0 q8_0 q4_k; do
  [ -f "$directory/$type.gguf" ] && continue
  "$directory/llama/bin/llama-quantize" --allow-requantize "$model" "$directory/$type.part" "${type/q4_k/q4_k_s}"
  mv "$directory/$type.part" "$directory/$type.gguf"
done
