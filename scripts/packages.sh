# Sourced by the other scripts: the Debian 12 packages that Quire needs, installed only when missing.

QUIRE_BUILD_PACKAGES=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev libssl-dev libnghttp2-dev zlib1g-dev
  nlohmann-json3-dev libpcre2-dev libutf8proc-dev libxxhash-dev prometheus-cpp-dev
  unzip ca-certificates python3
)
QUIRE_TEST_PACKAGES=(
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev clang libclang-rt-14-dev git
  python3-grpcio openssl
)

QUIRE_IMAGE_PACKAGES=(buildah podman runc netavark iptables mmdebstrap)

# quire_install PACKAGE...
quire_install() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null || {
    echo "these packages are missing, and there is no apt-get to install them: ${missing[*]}" >&2
    return 1
  }
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "run once as root: apt-get install ${missing[*]}" >&2
      return 1
    }
    as_root=(sudo)
  fi
  echo "installing ${#missing[@]} packages: ${missing[*]}" >&2
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
