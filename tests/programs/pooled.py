"""The culprit runs in the threads of a pool, for which the main thread waits."""

import hashlib
from concurrent.futures import ThreadPoolExecutor


def checksum(block):
    return hashlib.sha256(block * 40).hexdigest()


def main():
    with ThreadPoolExecutor(2) as pool:
        print(len(list(pool.map(checksum, [b"x" * 1_000_000] * 12))))


main()
