#!/bin/sh
# Builds Python 3.11 for musl from Debian's sources, and gets a musl to run it with:
#
#   tools/musl_python.sh FOLDER MIRROR
#   FOLDER/lib/ld-musl.so FOLDER/usr/bin/python3.11
#
# tools/roots.sh calls it. Needs apt, gcc, make and musl-tools; takes minutes.
set -eu
folder="$(realpath -m "$1")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"

mkdir -p lists/partial archives/partial kernel
# Debian 12 has musl 1.2.3, which lacks relocations (RELR) that the newest wheel of numpy needs.
printf '%s\n' "deb-src $2 bookworm main" "deb $2 trixie main" > sources.list
for action in update "source --download-only python3.11 zlib libffi" "download musl"; do
  # shellcheck disable=SC2086
  apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o Acquire::Languages=none \
    -o APT::Sandbox::User=root $action
done
dpkg-deb -x musl_*.deb musl
for archive in *.orig.tar.*; do tar -xf "$archive"; done

# musl brings no headers of the kernel; those of the distribution are for any C library.
ln -s /usr/include/linux /usr/include/asm-generic \
  "/usr/include/$(gcc -print-multiarch)/asm" kernel
# musl-gcc names the folder of the headers of glibc, and the build would look there.
cat > cc << 'EOF'
#!/bin/sh
case "$*" in
  *-print-multiarch) echo "$(uname -m)-linux-musl" ;;
  *) exec musl-gcc -isystem "${0%/*}/kernel" "$@" ;;
esac
EOF
chmod +x cc
export CC="$work/cc" CFLAGS="-O1 -fPIC" PKG_CONFIG_LIBDIR="$work/usr/lib/pkgconfig"
platform="--build=$(uname -m)-linux-musl"
quiet() { "$@" > log 2>&1 || { tail -n 30 log; exit 1; }; }
(
  cd zlib-*/
  quiet ./configure --static --prefix="$work/usr"
  quiet make install
)
(
  cd libffi-*/
  quiet ./configure "$platform" --disable-shared --disable-docs --disable-multi-os-directory \
    --prefix="$work/usr"
  quiet make -j 2 install
)
(
  cd Python-*/
  quiet ./configure "$platform" --prefix=/usr --without-ensurepip --disable-test-modules \
    OPT="-DNDEBUG -fwrapv" CFLAGS=-O1 CPPFLAGS="-I$work/usr/include" LDFLAGS="-L$work/usr/lib"
  quiet make -j 2
  quiet make DESTDIR="$work/built" install
)
mkdir built/lib
cp musl/usr/lib/*-linux-musl/libc.so built/lib/ld-musl.so
# The build leaves out modules that it cannot compile, without an error.
built/lib/ld-musl.so built/usr/bin/python3.11 -c "import ctypes, zlib"
rm -rf "$folder"
mv built "$folder"
